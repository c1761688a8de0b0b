use std::{collections::HashMap, error::Error, fmt};

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A call failed. Branch on `reason`, or on `code`; the text is for people and may change.
///
/// `reason` is a name of `handmesh.error.v1.ErrorReason` without its prefix, and `metadata` what that reason's comment
/// promises. When nobody of the mesh answered, `reason` is empty.
#[derive(Clone, Debug)]
pub struct MeshError {
    pub code: Code,
    pub reason: String,
    pub metadata: HashMap<String, String>,
    pub text: String,
}

impl MeshError {
    pub(crate) fn new(code: Code, reason: &str, text: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), metadata: HashMap::new(), text: text.into() }
    }

    /// Whether it looks like a service that goes away, or a network that breaks. A refusal has another code.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::Cancelled)
    }
}

impl From<Status> for MeshError {
    /// Turns a failed call back into what the mesh said.
    fn from(status: Status) -> Self {
        if let Some(info) = status.get_details_error_info()
            && info.domain == "handmesh"
        {
            let metadata = info.metadata;
            return Self { code: status.code(), reason: info.reason, metadata, text: status.message().into() };
        }
        // A status with a source was made on this side: the transport says in its own way that the link broke.
        let code = if status.source().is_some() { Code::Unavailable } else { status.code() };
        Self::new(code, "", status.message())
    }
}

impl fmt::Display for MeshError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} [{:?} {}]", self.text, self.code, self.reason)
    }
}

impl Error for MeshError {}
