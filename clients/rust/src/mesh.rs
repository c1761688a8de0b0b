use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use crate::{
    MeshError, Session,
    endurance::Endurance,
    session::{fresh, message},
    stubs::{CreateSessionRequest, SessionConfig, session_service_client::SessionServiceClient},
};

/// How long one try of a call may take.
const CALL_TIME: Duration = Duration::from_secs(30);

/// A link that is dead without a word is noticed after so long.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A page of events has up to 3 MiB, and one event more.
const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// Who calls, whom to trust and how long to go on trying.
pub struct Options {
    pub api_key: String,
    /// PEM; without it plain text to this machine, and TLS with the machine's authorities to others.
    pub ca_file: Option<PathBuf>,
    /// For how long a mesh that is away is tried again.
    pub patience: Duration,
}

impl Options {
    pub fn new(api_key: impl Into<String>) -> Self {
        Self { api_key: api_key.into(), ca_file: None, patience: Duration::from_secs(60) }
    }
}

/// One mesh, at the address of its session service (`host:port`): sessions are made and found here. Clones share a link.
#[derive(Clone)]
pub struct Mesh {
    pub(crate) service: SessionServiceClient<Channel>,
    pub(crate) patience: Duration,
    key: MetadataValue<Ascii>,
}

impl Mesh {
    /// Returns a client. It connects at the first call, within a Tokio runtime.
    pub fn new(address: &str, options: Options) -> Result<Self, MeshError> {
        let invalid = |what: String| MeshError::new(Code::InvalidArgument, "", what);
        let mut key: MetadataValue<Ascii> = format!("Bearer {}", options.api_key)
            .parse()
            .map_err(|_| invalid("no API key can look like that".into()))?;
        key.set_sensitive(true);
        let mut trust = ClientTlsConfig::new();
        let plain = match options.ca_file {
            Some(file) => {
                let authority = fs::read(&file).map_err(|it| invalid(format!("{}: {it}", file.display())))?;
                trust = trust.ca_certificate(Certificate::from_pem(authority));
                false
            }
            None => {
                trust = trust.with_native_roots();
                is_loopback(address)
            }
        };
        let scheme = if plain { "http" } else { "https" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|it| invalid(it.to_string()))?
            .connect_timeout(CALL_TIME)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE);
        if !plain {
            endpoint = endpoint.tls_config(trust).map_err(|it| invalid(it.to_string()))?;
        }
        let service = SessionServiceClient::new(endpoint.connect_lazy()).max_decoding_message_size(MESSAGE_BYTES);
        Ok(Self { service, patience: options.patience, key })
    }

    /// Starts a session with its first message.
    pub async fn create(&self, config: SessionConfig, text: &str) -> Result<Session, MeshError> {
        let request = CreateSessionRequest {
            request_id: fresh("create"),
            config: Some(config),
            initial_events: vec![message(text)],
        };
        let answer = self.call(request, async |mut service, request| service.create_session(request).await).await?;
        Ok(self.session(answer.session.unwrap_or_default().session_id))
    }

    /// Returns a handle on a session. Asks nobody.
    pub fn session(&self, id: impl Into<String>) -> Session {
        Session { id: id.into(), mesh: self.clone() }
    }

    /// Makes a unary call, again while the mesh is away: so the request has to carry an id that makes it idempotent.
    pub(crate) async fn call<Q: Clone, A>(
        &self,
        request: Q,
        method: impl AsyncFn(SessionServiceClient<Channel>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, MeshError> {
        let mut endurance = Endurance::new(self.patience);
        loop {
            let mut signed = self.signed(request.clone());
            signed.set_timeout(CALL_TIME);
            match method(self.service.clone(), signed).await.map_err(MeshError::from) {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(problem) if problem.is_broken() => endurance.wait(problem).await?,
                Err(problem) => return Err(problem),
            }
        }
    }

    /// Puts the caller's key on a request.
    pub(crate) fn signed<Q>(&self, request: Q) -> Request<Q> {
        let mut request = Request::new(request);
        request.metadata_mut().insert("authorization", self.key.clone());
        request
    }
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}
