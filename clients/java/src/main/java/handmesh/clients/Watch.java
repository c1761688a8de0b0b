package handmesh.clients;

import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.Preview;
import handmesh.clients.stubs.handmesh.session.v1.WatchEventsRequest;
import handmesh.clients.stubs.handmesh.session.v1.WatchEventsResponse;
import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.Map;
import java.util.Queue;

/** Follows a session's log through broken links. It never ends by itself; close it. For one thread. */
public final class Watch implements Iterator<Told>, AutoCloseable {
  /** A stream that stood so long was a good one, even if it had nothing to say. */
  private static final Duration HEALTHY_AFTER = Duration.ofSeconds(5);

  private final Session session;
  private final boolean previews;
  private final Cursor cursor;
  private final Endurance endurance;
  private final Queue<Told> waiting = new ArrayDeque<>();
  private MeshError gap; // is told behind what came before it
  private Context.CancellableContext call;
  private Iterator<WatchEventsResponse> stream; // null: it has to be opened
  private long opened;

  Watch(Session session, long start, boolean previews) {
    this.session = session;
    this.previews = previews;
    cursor = new Cursor(start);
    endurance = new Endurance(session.mesh.patience);
  }

  @Override
  public boolean hasNext() {
    return true;
  }

  /** Waits for what is told next. Throws MeshError when the mesh refuses, or was away for longer than the patience. */
  @Override
  public Told next() {
    while (true) {
      Told told = waiting.poll();
      if (told != null) {
        return told;
      }
      if (gap != null) {
        throw gap;
      }
      try {
        take(page());
      } catch (StatusRuntimeException failed) {
        mend(MeshError.raised(failed));
      }
    }
  }

  /** Reads the stream's next message; opens the stream first where there is none. */
  private WatchEventsResponse page() {
    if (stream == null) {
      opened = System.nanoTime();
      WatchEventsRequest request =
          WatchEventsRequest.newBuilder()
              .setSessionId(session.id)
              .setStartPosition(cursor.next())
              .setPreviews(previews)
              .build();
      call = Context.current().withCancellation();
      Context before = call.attach();
      try {
        stream = session.mesh.service.watchEvents(request);
      } finally {
        call.detach(before);
      }
    }
    if (!stream.hasNext()) {
      throw Status.UNAVAILABLE.withDescription("the stream ended").asRuntimeException();
    }
    return stream.next();
  }

  private void take(WatchEventsResponse page) {
    endurance.renew();
    try {
      for (Event event : page.getEventsList()) {
        if (cursor.isNews(event)) {
          waiting.add(new Told.Happened(event));
        }
      }
    } catch (MeshError found) {
      gap = found;
      return;
    }
    for (Preview preview : page.getPreviewsList()) {
      waiting.add(new Told.Previewed(preview));
    }
  }

  /** Waits until it is worth another try. */
  private void mend(MeshError problem) {
    close();
    if (!problem.isBroken() && !problem.reason.equals("READER_SLOW")) {
      throw problem;
    }
    if (System.nanoTime() - opened > HEALTHY_AFTER.toNanos()) {
      endurance.renew();
    }
    session.mesh.pause(endurance, problem);
  }

  /** Ends the stream. */
  @Override
  public void close() {
    if (call != null) {
      call.cancel(null);
    }
    stream = null;
  }
}
