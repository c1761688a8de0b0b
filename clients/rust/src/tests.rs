//! The client against a service that breaks off, repeats itself and refuses, over real gRPC.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::net::TcpListener;
use tonic::{
    Code, Request, Response, Status,
    codegen::BoxStream,
    transport::{Server, server::TcpIncoming},
};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{
    Mesh, MeshError, Options, Session, Told,
    stubs::{
        self, CreateSessionRequest, CreateSessionResponse, EmitEventRequest, EmitEventResponse, Event, Preview,
        SessionConfig, ToolConfirmationRequested, ToolConfirmed, WatchEventsRequest, WatchEventsResponse,
        event::Kind,
        preview::Delta,
        session_service_server::{SessionService, SessionServiceServer},
    },
};

const ID: &str = "sess_00000000000000000000000000";

/// What one watch is told, and what it breaks off with.
type Played = Vec<Result<WatchEventsResponse, Status>>;

/// Plays streams, one for each watch, and fails as many emits as it has failures. Notes what it was asked.
#[derive(Default)]
struct Plays {
    streams: VecDeque<Played>,
    failures: VecDeque<Status>,
    keys: Vec<String>,
    created: Vec<CreateSessionRequest>,
    emitted: Vec<EmitEventRequest>,
    watched: Vec<i64>,
}

struct Service(Arc<Mutex<Plays>>);

#[tonic::async_trait]
impl SessionService for Service {
    async fn create_session(
        &self,
        request: Request<CreateSessionRequest>,
    ) -> Result<Response<CreateSessionResponse>, Status> {
        let mut plays = self.0.lock().unwrap();
        plays.keys.extend(request.metadata().get("authorization").map(|key| key.to_str().unwrap().into()));
        plays.created.push(request.into_inner());
        let session = Some(stubs::Session { session_id: ID.into(), ..Default::default() });
        Ok(Response::new(CreateSessionResponse { session }))
    }

    async fn emit_event(&self, request: Request<EmitEventRequest>) -> Result<Response<EmitEventResponse>, Status> {
        let mut plays = self.0.lock().unwrap();
        plays.emitted.push(request.into_inner());
        match plays.failures.pop_front() {
            Some(failure) => Err(failure),
            None => Ok(Response::new(EmitEventResponse { position: 7, ..Default::default() })),
        }
    }

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<BoxStream<WatchEventsResponse>>, Status> {
        let mut plays = self.0.lock().unwrap();
        plays.watched.push(request.into_inner().start_position);
        Ok(Response::new(Box::pin(tokio_stream::iter(plays.streams.pop_front().unwrap_or_default()))))
    }
}

/// What the mesh says no with.
fn refusal(code: Code, reason: &str) -> Status {
    let metadata = [("tool_use_id".to_string(), "toolu_1".to_string())];
    Status::with_error_details(code, "no", ErrorDetails::with_error_info(reason, "handmesh", metadata))
}

fn page(positions: &[i64]) -> WatchEventsResponse {
    let events = positions.iter().map(|&position| Event { position, ..Default::default() }).collect();
    WatchEventsResponse { events, ..Default::default() }
}

/// Starts the service; returns what it notes, and a client of it that gives up after two seconds.
async fn playing(plays: Plays) -> (Arc<Mutex<Plays>>, Mesh, Session) {
    let notes = Arc::new(Mutex::new(plays));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = SessionServiceServer::new(Service(notes.clone()));
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
    let mesh = Mesh::new(&address, Options { patience: Duration::from_secs(2), ..Options::new("key") }).unwrap();
    let session = mesh.session(ID);
    (notes, mesh, session)
}

/// The key, the configuration and the first message go to the service, in one call that may be said again.
#[tokio::test]
async fn a_session_is_made_with_the_key() {
    let (notes, mesh, _) = playing(Plays::default()).await;
    let config = SessionConfig { system: "Be brief.".into(), ..Default::default() };
    assert_eq!(mesh.create(config.clone(), "say \"hi\"").await.unwrap().id, ID);
    let notes = notes.lock().unwrap();
    let (asked, first) = (&notes.created[0], &notes.created[0].initial_events[0]);
    assert_eq!((&notes.keys[..], asked.config.as_ref()), (&["Bearer key".to_string()][..], Some(&config)));
    assert!(!asked.request_id.is_empty() && !first.event_id.is_empty());
    let Some(Kind::MessageReceived(message)) = &first.kind else { panic!("{first:?}") };
    assert_eq!(message.content_json, r#"[{"text":"say \"hi\"","type":"text"}]"#);
}

/// It goes on behind the last event seen: what comes twice is told once, and a slow reader is let in again.
#[tokio::test]
async fn a_broken_stream_is_resumed() {
    let preview = Preview { event_id: "next".into(), ..Default::default() };
    let first = WatchEventsResponse { previews: vec![preview], ..page(&[2, 3]) };
    let streams = [
        vec![Ok(first), Err(refusal(Code::Unavailable, "DRAINING"))],
        vec![Ok(page(&[3, 4])), Err(refusal(Code::ResourceExhausted, "READER_SLOW"))],
        vec![],
        vec![Ok(page(&[5]))],
    ];
    let (notes, _, session) = playing(Plays { streams: streams.into(), ..Default::default() }).await;
    let mut watch = session.watch(2, true);
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(match watch.next().await.unwrap() {
            Told::Event(event) => event.position.to_string(),
            Told::Preview(preview) => preview.event_id,
        });
    }
    assert_eq!(seen, ["2", "3", "next", "4", "5"]);
    assert_eq!(notes.lock().unwrap().watched, [2, 4, 5, 5]);
}

/// A log has no gaps, so a missing event is not passed over.
#[tokio::test]
async fn a_gap_is_an_error() {
    let streams = [vec![Ok(page(&[1, 3]))]];
    let (_, _, session) = playing(Plays { streams: streams.into(), ..Default::default() }).await;
    let mut watch = session.watch(0, false);
    assert!(matches!(watch.next().await.unwrap(), Told::Event(event) if event.position == 1));
    let gap = watch.next().await.unwrap_err();
    assert_eq!((&*gap.reason, &*gap.metadata["position"]), ("LOG_INVALID", "2"));
}

/// A refusal has the code, the reason and the reason's metadata, and is not tried again.
#[tokio::test]
async fn a_refusal_is_typed() {
    let failures = [refusal(Code::FailedPrecondition, "TOOL_CALL_SETTLED")];
    let (notes, _, session) = playing(Plays { failures: failures.into(), ..Default::default() }).await;
    let (tool_use_id, call_hash) = ("toolu_1".to_string(), "h".to_string());
    let asked = ToolConfirmationRequested {
        tool_use_id: tool_use_id.clone(),
        call_hash: call_hash.clone(),
        ..Default::default()
    };
    let error = session.decide(&asked, true, "").await.unwrap_err();
    assert_eq!((error.code, &*error.reason), (Code::FailedPrecondition, "TOOL_CALL_SETTLED"));
    assert_eq!(error.metadata["tool_use_id"], "toolu_1");
    let said: Vec<_> = notes.lock().unwrap().emitted.iter().map(|it| it.event.clone().unwrap().kind).collect();
    let decision = ToolConfirmed { tool_use_id, allowed: true, message: String::new(), call_hash };
    assert_eq!(said, [Some(Kind::ToolConfirmed(decision))]);
}

/// While the service is away an answer is said again, by one event id: so it is in the log once.
#[tokio::test]
async fn an_answer_is_said_again() {
    let away = refusal(Code::Unavailable, "DRAINING");
    let failures = [away.clone(), away];
    let (notes, _, session) = playing(Plays { failures: failures.into(), ..Default::default() }).await;
    assert_eq!(session.answer("toolu_1", "fine").await.unwrap(), 7);
    let notes = notes.lock().unwrap();
    let ids: Vec<_> = notes.emitted.iter().map(|it| &it.event.as_ref().unwrap().event_id).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| *id == ids[0]));
}

/// A mesh that stays away is an error in the end.
#[tokio::test]
async fn patience_ends() {
    let options = Options { patience: Duration::from_millis(200), ..Options::new("key") };
    let mesh = Mesh::new("127.0.0.1:1", options).unwrap();
    let error = mesh.session(ID).watch(1, false).next().await.unwrap_err();
    assert_eq!((error.code, &*error.reason), (Code::Unavailable, ""));
}

/// The quickstart of docs/clients.md: it is compiled, and not run.
#[allow(dead_code)]
async fn quickstart(api_key: &str) -> Result<(), MeshError> {
    let mesh = Mesh::new("127.0.0.1:7401", Options::new(api_key))?;
    let config = SessionConfig { system: "Be brief.".into(), ..Default::default() };
    let mut watch = mesh.create(config, "List the files.").await?.watch(1, true);
    loop {
        match watch.next().await? {
            Told::Preview(Preview { delta: Some(Delta::Text(text)), .. }) => print!("{text}"),
            Told::Event(event) if matches!(event.kind, Some(Kind::TurnEnded(_))) => return Ok(()),
            _ => {}
        }
    }
}
