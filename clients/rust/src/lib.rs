//! A client of a mesh on the generated stubs.
//!
//! ```no_run
//! # use handmesh_client::{Mesh, MeshError, Options, stubs::SessionConfig};
//! # async fn list() -> Result<(), MeshError> {
//! let mesh = Mesh::new("127.0.0.1:7401", Options::new("the API key"))?;
//! let config = SessionConfig { system: "Be brief.".into(), ..Default::default() };
//! let session = mesh.create(config, "List the files.").await?;
//! let mut watch = session.watch(1, true);
//! loop {
//!     let told = watch.next().await?;
//!     println!("{told:?}");
//! }
//! # }
//! ```
//!
//! Read in this order: `error`, `endurance`, `cursor`, `mesh`, `session`, `watch`.

mod cursor;
mod endurance;
mod error;
mod mesh;
mod session;
mod watch;

#[cfg(test)]
mod tests;

pub use error::MeshError;
pub use mesh::{Mesh, Options};
pub use session::Session;
pub use watch::{Told, Watch};

/// The contracts' messages, and the session service's client.
pub mod stubs {
    #![allow(clippy::all)]

    mod generated {
        include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
    }

    pub use generated::handmesh::sandbox::v1::{ToolOutcome, ToolResult};
    pub use generated::handmesh::session::v1::*;
}
