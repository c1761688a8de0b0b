package handmesh.clients;

import handmesh.clients.stubs.handmesh.session.v1.Event;
import io.grpc.Status;
import java.util.Map;

/** Where a reader is in a log: the next position to read. Positions are dense, from 1. */
final class Cursor {
  private long next;

  Cursor(long start) {
    next = Math.max(1, start);
  }

  /** Returns what a broken stream is resumed from. */
  long next() {
    return next;
  }

  /** Says whether an event was not seen yet, and moves on behind it. A gap throws {@code LOG_INVALID}. */
  boolean isNews(Event event) {
    if (event.getPosition() > next) {
      String text = "event " + next + " is missing: " + event.getPosition() + " came instead";
      throw new MeshError(Status.Code.DATA_LOSS, "LOG_INVALID", text, Map.of("position", Long.toString(next)));
    }
    if (event.getPosition() < next) {
      return false; // it comes twice
    }
    next++;
    return true;
  }
}
