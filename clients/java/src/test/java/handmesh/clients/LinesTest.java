package handmesh.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.Preview;
import handmesh.clients.stubs.handmesh.session.v1.TurnEndReason;
import handmesh.clients.stubs.handmesh.session.v1.TurnEnded;
import java.util.Map;
import org.junit.jupiter.api.Test;

class LinesTest {
  /** An event is printed with what is essential of its kind. */
  @Test
  void anEvent() {
    TurnEnded ended = TurnEnded.newBuilder().setReason(TurnEndReason.TURN_END_REASON_DONE).build();
    Map<String, Object> said = Lines.ofEvent(Event.newBuilder().setPosition(3).setTurnEnded(ended).build());
    assertEquals(Map.of("event", "turn_ended", "position", 3L, "reason", "DONE"), said);
  }

  /** An event of a newer contract stops the reader, unless it may be ignored. */
  @Test
  void anUnknownEvent() {
    Event ignorable = Event.newBuilder().setPosition(4).setIgnorable(true).build();
    assertEquals(Map.of("event", "unknown", "position", 4L), Lines.ofEvent(ignorable));
    Event unknown = Event.newBuilder().setPosition(5).build();
    MeshError stops = assertThrows(MeshError.class, () -> Lines.ofEvent(unknown));
    assertEquals("EVENT_UNKNOWN", stops.reason);
  }

  /** A piece is printed with the place where it belongs. */
  @Test
  void aPreview() {
    Preview preview = Preview.newBuilder().setEventId("e").setBlockIndex(1).setOffset(2).setToolInput("hi").build();
    Map<String, Object> expected =
        Map.of("preview", "tool_input", "event_id", "e", "block", 1, "offset", 2L, "piece", "hi");
    assertEquals(expected, Lines.ofPreview(preview));
  }
}
