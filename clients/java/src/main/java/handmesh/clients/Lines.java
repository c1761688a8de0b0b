package handmesh.clients;

import handmesh.clients.stubs.handmesh.sandbox.v1.ToolResult;
import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.Preview;
import io.grpc.Status;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/** What {@code converse} prints: one JSON object for each event, preview and error, the same in every language. */
final class Lines {
  private Lines() {}

  /** Returns position, kind and what is essential of the kind. Throws at an unknown one that must not be skipped. */
  static Map<String, Object> ofEvent(Event event) {
    String kind = event.getKindCase().name().toLowerCase(Locale.ROOT);
    if (event.getKindCase() == Event.KindCase.KIND_NOT_SET) {
      if (!event.getIgnorable()) {
        Map<String, String> where = Map.of("position", Long.toString(event.getPosition()));
        throw new MeshError(Status.Code.UNIMPLEMENTED, "EVENT_UNKNOWN", "an event of a newer contract", where);
      }
      kind = "unknown";
    }
    Map<String, Object> line = new LinkedHashMap<>(Map.of("event", kind, "position", event.getPosition()));
    line.putAll(essence(event));
    return line;
  }

  private static Map<String, Object> essence(Event event) {
    switch (event.getKindCase()) {
      case MESSAGE_RECEIVED:
        return Map.of("content", event.getMessageReceived().getContentJson());
      case MODEL_REPLIED:
        var replied = event.getModelReplied();
        return Map.of("content", replied.getContentJson(), "stop_reason", replied.getStopReason());
      case TOOL_STARTED:
        var started = event.getToolStarted();
        return Map.of("tool_use_id", started.getToolUseId(), "name", started.getName(), "hand", started.getHand());
      case TOOL_FINISHED:
        return settled(event.getToolFinished().getToolUseId(), event.getToolFinished().getResult());
      case TOOL_CONFIRMATION_REQUESTED:
        var asked = event.getToolConfirmationRequested();
        return Map.of("tool_use_id", asked.getToolUseId(), "name", asked.getName(), "call_hash", asked.getCallHash());
      case TOOL_CONFIRMED:
        var decided = event.getToolConfirmed();
        return Map.of("tool_use_id", decided.getToolUseId(), "allowed", decided.getAllowed());
      case CUSTOM_TOOL_REQUESTED:
        var requested = event.getCustomToolRequested();
        return Map.of(
            "tool_use_id", requested.getToolUseId(), "name", requested.getName(), "input", requested.getInputJson());
      case CUSTOM_TOOL_ANSWERED:
        return settled(event.getCustomToolAnswered().getToolUseId(), event.getCustomToolAnswered().getResult());
      case TURN_ENDED:
        return Map.of("reason", stripped(event.getTurnEnded().getReason().name(), "TURN_END_REASON_"));
      default:
        return Map.of();
    }
  }

  private static Map<String, Object> settled(String toolUseId, ToolResult result) {
    String outcome = stripped(result.getOutcome().name(), "TOOL_OUTCOME_");
    return Map.of("tool_use_id", toolUseId, "outcome", outcome, "output", result.getOutput());
  }

  private static String stripped(String name, String prefix) {
    return name.startsWith(prefix) ? name.substring(prefix.length()) : name;
  }

  /** Returns the piece, and where it belongs. */
  static Map<String, Object> ofPreview(Preview preview) {
    boolean known = preview.getDeltaCase() != Preview.DeltaCase.DELTA_NOT_SET;
    String piece =
        switch (preview.getDeltaCase()) {
          case TEXT -> preview.getText();
          case THINKING -> preview.getThinking();
          case TOOL_INPUT -> preview.getToolInput();
          case TOOL_OUTPUT -> preview.getToolOutput();
          default -> "";
        };
    return Map.of(
        "preview", known ? preview.getDeltaCase().name().toLowerCase(Locale.ROOT) : "unknown",
        "event_id", preview.getEventId(),
        "block", preview.getBlockIndex(),
        "offset", preview.getOffset(),
        "piece", piece);
  }

  /** Returns why a call was refused. */
  static Map<String, Object> ofError(MeshError error) {
    return Map.of("code", error.code.name(), "reason", error.reason, "metadata", error.metadata);
  }
}
