package handmesh.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import handmesh.clients.stubs.handmesh.session.v1.CreateSessionRequest;
import handmesh.clients.stubs.handmesh.session.v1.CreateSessionResponse;
import handmesh.clients.stubs.handmesh.session.v1.EmitEventRequest;
import handmesh.clients.stubs.handmesh.session.v1.EmitEventResponse;
import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.Preview;
import handmesh.clients.stubs.handmesh.session.v1.SessionConfig;
import handmesh.clients.stubs.handmesh.session.v1.SessionServiceGrpc.SessionServiceImplBase;
import handmesh.clients.stubs.handmesh.session.v1.ToolConfirmationRequested;
import handmesh.clients.stubs.handmesh.session.v1.ToolConfirmed;
import handmesh.clients.stubs.handmesh.session.v1.WatchEventsRequest;
import handmesh.clients.stubs.handmesh.session.v1.WatchEventsResponse;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The client against a service that breaks off, repeats itself and refuses, over real gRPC. */
class MeshTest {
  private static final String ID = "sess_00000000000000000000000000";

  private final Plays plays = new Plays();
  private Server server;
  private Mesh mesh;

  /** Plays streams, one for each watch: pages, then what it breaks off with. Fails as many emits as it has failures. */
  private static final class Plays extends SessionServiceImplBase implements ServerInterceptor {
    final Queue<List<Object>> streams = new ArrayDeque<>();
    final Queue<Exception> failures = new ArrayDeque<>();
    final List<String> keys = new CopyOnWriteArrayList<>();
    final List<CreateSessionRequest> created = new CopyOnWriteArrayList<>();
    final List<EmitEventRequest> emitted = new CopyOnWriteArrayList<>();
    final List<Long> watched = new CopyOnWriteArrayList<>();

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata shown, ServerCallHandler<Q, A> next) {
      keys.add(shown.get(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER)));
      return next.startCall(call, shown);
    }

    @Override
    public void createSession(CreateSessionRequest asked, StreamObserver<CreateSessionResponse> answer) {
      created.add(asked);
      CreateSessionResponse.Builder made = CreateSessionResponse.newBuilder();
      made.getSessionBuilder().setSessionId(ID);
      answer.onNext(made.build());
      answer.onCompleted();
    }

    @Override
    public void emitEvent(EmitEventRequest said, StreamObserver<EmitEventResponse> answer) {
      emitted.add(said);
      Exception failure = failures.poll();
      if (failure != null) {
        answer.onError(failure);
        return;
      }
      answer.onNext(EmitEventResponse.newBuilder().setPosition(7).build());
      answer.onCompleted();
    }

    @Override
    public void watchEvents(WatchEventsRequest asked, StreamObserver<WatchEventsResponse> answer) {
      watched.add(asked.getStartPosition());
      for (Object it : streams.remove()) {
        if (it instanceof Exception broken) {
          answer.onError(broken);
          return;
        }
        answer.onNext((WatchEventsResponse) it);
      }
      answer.onCompleted();
    }
  }

  @BeforeEach
  void play() throws IOException {
    server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(plays)
            .intercept(plays)
            .build()
            .start();
    mesh = Mesh.at("127.0.0.1:" + server.getPort(), "key", Duration.ofSeconds(2));
  }

  @AfterEach
  void stop() {
    mesh.close();
    server.shutdownNow();
  }

  /** What the mesh says no with. */
  private static Exception refusal(Status.Code code, String reason) {
    ErrorInfo info =
        ErrorInfo.newBuilder().setReason(reason).setDomain("handmesh").putMetadata("tool_use_id", "toolu_1").build();
    var status = com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage("no").addDetails(Any.pack(info));
    return StatusProto.toStatusRuntimeException(status.build());
  }

  private static WatchEventsResponse.Builder page(long... positions) {
    WatchEventsResponse.Builder page = WatchEventsResponse.newBuilder();
    for (long position : positions) {
      page.addEvents(Event.newBuilder().setPosition(position));
    }
    return page;
  }

  /** The key, the configuration and the first message go to the service, in one call that may be said again. */
  @Test
  void aSessionIsMadeWithTheKey() {
    SessionConfig config = SessionConfig.newBuilder().setSystem("Be brief.").build();
    assertEquals(ID, mesh.create(config, "say \"hi\"").id);
    CreateSessionRequest asked = plays.created.get(0);
    Event first = asked.getInitialEvents(0);
    assertEquals(List.of("Bearer key"), plays.keys);
    assertEquals(config, asked.getConfig());
    assertFalse(asked.getRequestId().isEmpty() || first.getEventId().isEmpty());
    var content = com.google.gson.JsonParser.parseString(first.getMessageReceived().getContentJson());
    assertEquals("say \"hi\"", content.getAsJsonArray().get(0).getAsJsonObject().get("text").getAsString());
  }

  /** It goes on behind the last event seen: what comes twice is told once, and a slow reader is let in again. */
  @Test
  void aBrokenStreamIsResumed() {
    var preview = Preview.newBuilder().setEventId("next");
    plays.streams.add(List.of(page(2, 3).addPreviews(preview).build(), refusal(Status.Code.UNAVAILABLE, "DRAINING")));
    plays.streams.add(List.of(page(3, 4).build(), refusal(Status.Code.RESOURCE_EXHAUSTED, "READER_SLOW")));
    plays.streams.add(List.of());
    plays.streams.add(List.of(page(5).build()));
    List<Object> seen = new ArrayList<>();
    try (Watch watch = mesh.session(ID).watch(2, true)) {
      while (seen.size() < 5) {
        Told told = watch.next();
        seen.add(
            told instanceof Told.Happened it
                ? it.event().getPosition()
                : ((Told.Previewed) told).preview().getEventId());
      }
    }
    assertEquals(List.<Object>of(2L, 3L, "next", 4L, 5L), seen);
    assertEquals(List.of(2L, 4L, 5L, 5L), plays.watched);
  }

  /** A log has no gaps, so a missing event is not passed over. */
  @Test
  void aGapIsAnError() {
    plays.streams.add(List.of(page(1, 3).build()));
    try (Watch watch = mesh.session(ID).watch(0, false)) {
      assertEquals(new Told.Happened(Event.newBuilder().setPosition(1).build()), watch.next());
      MeshError gap = assertThrows(MeshError.class, watch::next);
      assertEquals("LOG_INVALID", gap.reason);
      assertEquals(Map.of("position", "2"), gap.metadata);
    }
  }

  /** A refusal has the code, the reason and the reason's metadata, and is not tried again. */
  @Test
  void aRefusalIsTyped() {
    plays.failures.add(refusal(Status.Code.FAILED_PRECONDITION, "TOOL_CALL_SETTLED"));
    var asked = ToolConfirmationRequested.newBuilder().setToolUseId("toolu_1").setCallHash("h").build();
    MeshError error = assertThrows(MeshError.class, () -> mesh.session(ID).decide(asked, true, ""));
    assertEquals(Status.Code.FAILED_PRECONDITION, error.code);
    assertEquals("TOOL_CALL_SETTLED", error.reason);
    assertEquals(Map.of("tool_use_id", "toolu_1"), error.metadata);
    assertEquals(1, plays.emitted.size());
    var decision = ToolConfirmed.newBuilder().setToolUseId("toolu_1").setAllowed(true).setCallHash("h").build();
    assertEquals(decision, plays.emitted.get(0).getEvent().getToolConfirmed());
  }

  /** While the service is away an answer is said again, by one event id: so it is in the log once. */
  @Test
  void anAnswerIsSaidAgain() {
    plays.failures.add(refusal(Status.Code.UNAVAILABLE, "DRAINING"));
    plays.failures.add(refusal(Status.Code.UNAVAILABLE, "DRAINING"));
    assertEquals(7, mesh.session(ID).answer("toolu_1", "fine"));
    assertEquals(3, plays.emitted.size());
    Set<String> ids = new HashSet<>();
    plays.emitted.forEach(said -> ids.add(said.getEvent().getEventId()));
    assertEquals(1, ids.size());
  }

  /** A mesh that stays away is an error in the end. */
  @Test
  void patienceEnds() {
    server.shutdownNow();
    try (Mesh away = Mesh.at("127.0.0.1:1", "key", Duration.ofMillis(200));
        Watch watch = away.session(ID).watch(1, false)) {
      MeshError error = assertThrows(MeshError.class, watch::next);
      assertEquals(Status.Code.UNAVAILABLE, error.code);
      assertEquals("", error.reason);
    }
  }
}
