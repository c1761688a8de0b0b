package handmesh.clients;

import io.grpc.Status;
import java.time.Duration;
import java.util.Map;

/** Waits between tries, until they have failed for all of its patience on end. */
final class Endurance {
  /** Between two tries, in milliseconds: doubled from the first to the longest. */
  private static final long FIRST_PAUSE = 50;

  private static final long LONGEST_PAUSE = 2_000;

  private final Duration patience;
  private long pause;
  private long givesUp; // in nanoseconds of System.nanoTime; counts while something fails
  private boolean failing;

  Endurance(Duration patience) {
    this.patience = patience;
    renew();
  }

  /** Begins anew: something worked. */
  void renew() {
    pause = FIRST_PAUSE;
    failing = false;
  }

  /** Waits for the next try, or throws the problem of the last one when there is to be none. */
  void await(MeshError problem) {
    long now = System.nanoTime();
    if (!failing) {
      failing = true;
      givesUp = now + patience.toNanos();
    }
    if (now + pause * 1_000_000 - givesUp > 0) {
      throw problem;
    }
    try {
      Thread.sleep(pause);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new MeshError(Status.Code.ABORTED, "", "interrupted while it waited", Map.of());
    }
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}
