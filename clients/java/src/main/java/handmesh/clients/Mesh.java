package handmesh.clients;

import handmesh.clients.stubs.handmesh.session.v1.CreateSessionRequest;
import handmesh.clients.stubs.handmesh.session.v1.SessionConfig;
import handmesh.clients.stubs.handmesh.session.v1.SessionServiceGrpc;
import handmesh.clients.stubs.handmesh.session.v1.SessionServiceGrpc.SessionServiceBlockingStub;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

/**
 * One mesh, at the address of its session service: sessions are made and found here.
 *
 * <pre>{@code
 * try (Mesh mesh = Mesh.at("127.0.0.1:7401", apiKey)) {
 *   Session session = mesh.create(SessionConfig.newBuilder().setSystem("Be brief.").build(), "List the files.");
 *   try (Watch watch = session.watch(1, true)) {
 *     for (Told told = watch.next(); ; told = watch.next()) { ... }
 *   }
 * }
 * }</pre>
 *
 * <p>Read in this order: MeshError, Endurance, Cursor, Mesh, Session, Watch.
 */
public final class Mesh implements AutoCloseable {
  private static final long CALL_SECONDS = 30; // for one try of a call
  private static final int MESSAGE_BYTES = 8 * 1024 * 1024; // a page of events has up to 3 MiB, and one event more
  private static final Duration PATIENCE = Duration.ofSeconds(60);
  private static final Metadata.Key<String> KEY = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  final SessionServiceBlockingStub service;
  final Duration patience;
  private final ManagedChannel channel;

  private Mesh(String address, ChannelCredentials link, String apiKey, Duration patience) {
    channel =
        Grpc.newChannelBuilder(address, link)
            .maxInboundMessageSize(MESSAGE_BYTES)
            .keepAliveTime(10, TimeUnit.SECONDS) // a link that is dead without a word is noticed
            .keepAliveTimeout(10, TimeUnit.SECONDS)
            .build();
    Metadata shown = new Metadata();
    shown.put(KEY, "Bearer " + apiKey);
    service = SessionServiceGrpc.newBlockingStub(channel).withInterceptors(MetadataUtils.newAttachHeadersInterceptor(shown));
    this.patience = patience;
  }

  /** Returns a client that speaks plain text to this machine, and TLS to others. It connects at the first call. */
  public static Mesh at(String address, String apiKey) {
    return at(address, apiKey, PATIENCE);
  }

  /** The same, with another time for which a mesh that is away is tried again. */
  public static Mesh at(String address, String apiKey, Duration patience) {
    boolean plain = address.matches("(localhost|127\\.[0-9.]+|\\[::1\\]):\\d+");
    return new Mesh(address, plain ? InsecureChannelCredentials.create() : TlsChannelCredentials.create(), apiKey, patience);
  }

  /** Returns a client that speaks TLS and trusts one authority (PEM). */
  public static Mesh at(String address, String apiKey, Duration patience, File authority) throws IOException {
    return new Mesh(address, TlsChannelCredentials.newBuilder().trustManager(authority).build(), apiKey, patience);
  }

  /** Starts a session with its first message. Throws MeshError, as all methods do. */
  public Session create(SessionConfig config, String text) {
    CreateSessionRequest request =
        CreateSessionRequest.newBuilder()
            .setRequestId(fresh("create"))
            .setConfig(config)
            .addInitialEvents(Session.message(text))
            .build();
    return session(call(stub -> stub.createSession(request)).getSession().getSessionId());
  }

  /** Returns a handle on a session. Asks nobody. */
  public Session session(String id) {
    return new Session(this, id);
  }

  /** Makes a unary call, again while the mesh is away: so the request has to carry an id that makes it idempotent. */
  <A> A call(Function<SessionServiceBlockingStub, A> method) {
    Endurance endurance = new Endurance(patience);
    while (true) {
      try {
        return method.apply(service.withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS));
      } catch (StatusRuntimeException failed) {
        MeshError problem = MeshError.raised(failed);
        if (!problem.isBroken()) {
          throw problem;
        }
        pause(endurance, problem);
      }
    }
  }

  /** Waits until it is worth another try, which then connects at once. */
  void pause(Endurance endurance, MeshError problem) {
    endurance.await(problem);
    channel.resetConnectBackoff();
  }

  /** Names an event, or a request, so that it can be said again after a lost answer. */
  static String fresh(String what) {
    return what + "-" + UUID.randomUUID();
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }
}
