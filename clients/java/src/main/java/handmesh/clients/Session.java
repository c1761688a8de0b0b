package handmesh.clients;

import com.google.gson.Gson;
import handmesh.clients.stubs.handmesh.sandbox.v1.ToolOutcome;
import handmesh.clients.stubs.handmesh.sandbox.v1.ToolResult;
import handmesh.clients.stubs.handmesh.session.v1.CustomToolAnswered;
import handmesh.clients.stubs.handmesh.session.v1.EmitEventRequest;
import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.MessageReceived;
import handmesh.clients.stubs.handmesh.session.v1.ToolConfirmationRequested;
import handmesh.clients.stubs.handmesh.session.v1.ToolConfirmed;
import java.util.List;
import java.util.Map;

/** A handle on one session: say something, follow what happens, answer what is asked. All methods throw MeshError. */
public final class Session {
  public final String id;
  final Mesh mesh;

  Session(Mesh mesh, String id) {
    this.mesh = mesh;
    this.id = id;
  }

  /** Appends an event and returns its position. Said again with the same event id it is appended once. */
  public long emit(Event event) {
    EmitEventRequest request = EmitEventRequest.newBuilder().setSessionId(id).setEvent(event).build();
    return mesh.call(stub -> stub.emitEvent(request)).getPosition();
  }

  /** Sends the agent a message; returns its position. */
  public long send(String text) {
    return emit(message(text));
  }

  /** Answers a CustomToolRequested. The first answer counts; another one is refused ({@code TOOL_CALL_SETTLED}). */
  public long answer(String toolUseId, String output) {
    ToolResult result = ToolResult.newBuilder().setOutput(output).setOutcome(ToolOutcome.TOOL_OUTCOME_OK).build();
    CustomToolAnswered answered = CustomToolAnswered.newBuilder().setToolUseId(toolUseId).setResult(result).build();
    return emit(Event.newBuilder().setEventId(Mesh.fresh("answer")).setCustomToolAnswered(answered).build());
  }

  /** Says whether a tool call may run. The first decision counts; the reason is told to the model. */
  public long decide(ToolConfirmationRequested asked, boolean allowed, String reason) {
    ToolConfirmed decision =
        ToolConfirmed.newBuilder()
            .setToolUseId(asked.getToolUseId())
            .setAllowed(allowed)
            .setMessage(reason)
            .setCallHash(asked.getCallHash())
            .build();
    return emit(Event.newBuilder().setEventId(Mesh.fresh("decision")).setToolConfirmed(decision).build());
  }

  /**
   * Follows the log from a position on, each event once and in order, then each new one.
   *
   * <p>With previews also pieces of events to come. After a break it goes on behind the last event seen; previews of the
   * meantime are lost.
   */
  public Watch watch(long start, boolean previews) {
    return new Watch(this, start, previews);
  }

  /** Makes a message to the agent, with an id of its own. */
  static Event message(String text) {
    String content = new Gson().toJson(List.of(Map.of("type", "text", "text", text)));
    MessageReceived received = MessageReceived.newBuilder().setContentJson(content).build();
    return Event.newBuilder().setEventId(Mesh.fresh("message")).setMessageReceived(received).build();
  }
}
