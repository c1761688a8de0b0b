//! Gives an agent a task and sees it through: answers its tool, decides what it asks, and prints all that happens.
//!
//!     HANDMESH_API_KEY=... converse --address 127.0.0.1:7401 "look into order 7"
//!
//! The agent has one tool of ours, `lookup_order`, and has to ask before it runs `bash`. docs/clients.md explains it.

mod lines;

use std::{
    env,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use handmesh_client::{
    Mesh, MeshError, Session, Told,
    stubs::{CustomTool, Event, SessionConfig, ToolPolicy, ToolPolicyAction, event::Kind},
};
use lexopt::{Arg, Parser, ValueExt};
use serde_json::{Value, json};

#[derive(Default)]
struct Arguments {
    address: String,
    session: String,
    task: String,
    start: i64,
    deny: bool,
    options: Option<handmesh_client::Options>,
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    let mut chosen = Arguments { start: 1, ..Default::default() };
    let mut options = handmesh_client::Options::new(env::var("HANDMESH_API_KEY").unwrap_or_default());
    let mut parser = Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("address") => chosen.address = parser.value()?.string()?, // host:port of the session service
            Arg::Long("ca") => options.ca_file = Some(PathBuf::from(parser.value()?)), // the authority to trust, PEM
            Arg::Long("session") => chosen.session = parser.value()?.string()?, // goes on with this session
            Arg::Long("from") => chosen.start = parser.value()?.parse()?,       // first position to print
            Arg::Long("deny") => chosen.deny = true,                            // declines what the agent asks for
            Arg::Long("patience") => {
                // seconds for which a mesh that is away is tried
                options.patience = parser.value()?.parse_with(|it| it.parse().map(Duration::from_secs_f64))?;
            }
            Arg::Value(task) => chosen.task = task.string()?,
            _ => return Err(argument.unexpected()),
        }
    }
    if options.api_key.is_empty() || chosen.address.is_empty() || chosen.task.is_empty() && chosen.session.is_empty() {
        return Err("HANDMESH_API_KEY has to be set, and an address, and a task or a session to be given".into());
    }
    chosen.options = Some(options);
    Ok(chosen)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut chosen = match arguments() {
        Ok(chosen) => chosen,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let options = chosen.options.take().expect("arguments have them");
    match converse(options, &chosen).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show(&json!({"error": lines::of_error(&error)}));
            ExitCode::FAILURE
        }
    }
}

/// Begins, or goes on, and follows the session until the turn has ended.
async fn converse(options: handmesh_client::Options, chosen: &Arguments) -> Result<(), MeshError> {
    let mesh = Mesh::new(&chosen.address, options)?;
    let mut said = 0;
    let session = if chosen.session.is_empty() {
        mesh.create(config(), &chosen.task).await?
    } else {
        mesh.session(&chosen.session)
    };
    if !chosen.session.is_empty() && !chosen.task.is_empty() {
        said = session.send(&chosen.task).await?;
    }
    show(&json!({"session": session.id}));
    let mut watch = session.watch(chosen.start, true);
    loop {
        let event = match watch.next().await? {
            Told::Event(event) => event,
            Told::Preview(preview) => {
                show(&lines::of_preview(&preview));
                continue;
            }
        };
        show(&lines::of_event(&event)?);
        match react(&session, &event, !chosen.deny).await {
            Err(error) if ["TOOL_CALL_SETTLED", "TOOL_CALL_UNKNOWN"].contains(&&*error.reason) => {
                show(&json!({"refused": lines::of_error(&error)})); // somebody else was first
            }
            reacted => reacted?,
        }
        if matches!(event.kind, Some(Kind::TurnEnded(_))) && event.position > said {
            return Ok(());
        }
    }
}

fn config() -> SessionConfig {
    SessionConfig {
        title: "converse".into(),
        custom_tools: vec![CustomTool {
            name: "lookup_order".into(),
            description: "Tells how an order stands.".into(),
            input_schema_json: json!({
                "type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"],
            })
            .to_string(),
            timeout: None,
        }],
        tool_policies: vec![ToolPolicy { pattern: "bash".into(), action: ToolPolicyAction::Ask.into() }],
        ..Default::default()
    }
}

/// Does what an event asks of a client.
async fn react(session: &Session, event: &Event, allowed: bool) -> Result<(), MeshError> {
    match &event.kind {
        Some(Kind::CustomToolRequested(asked)) => {
            let input: Value = serde_json::from_str(&asked.input_json).unwrap_or_default();
            let order = input["order_id"].as_str().unwrap_or("?");
            session.answer(&asked.tool_use_id, &format!("order {order} is paid")).await?;
        }
        Some(Kind::ToolConfirmationRequested(asked)) => {
            session.decide(asked, allowed, if allowed { "" } else { "Not now." }).await?;
        }
        _ => {}
    }
    Ok(())
}

/// Prints one line.
fn show(line: &Value) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}"); // whoever reads it may have left
}
