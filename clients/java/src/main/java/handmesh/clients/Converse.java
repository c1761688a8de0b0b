package handmesh.clients;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonParser;
import handmesh.clients.stubs.handmesh.session.v1.CustomTool;
import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.SessionConfig;
import handmesh.clients.stubs.handmesh.session.v1.ToolPolicy;
import handmesh.clients.stubs.handmesh.session.v1.ToolPolicyAction;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * Gives an agent a task and sees it through: answers its tool, decides what it asks, and prints all that happens.
 *
 * <pre>HANDMESH_API_KEY=... java handmesh.clients.Converse --address 127.0.0.1:7401 "look into order 7"</pre>
 *
 * <p>The agent has one tool of ours, lookup_order, and has to ask before it runs bash. docs/clients.md explains it.
 */
public final class Converse {
  private static final SessionConfig CONFIG =
      SessionConfig.newBuilder()
          .setTitle("converse")
          .addCustomTools(
              CustomTool.newBuilder()
                  .setName("lookup_order")
                  .setDescription("Tells how an order stands.")
                  .setInputSchemaJson(
                      "{\"type\":\"object\",\"properties\":{\"order_id\":{\"type\":\"string\"}},\"required\":[\"order_id\"]}"))
          .addToolPolicies(
              ToolPolicy.newBuilder().setPattern("bash").setAction(ToolPolicyAction.TOOL_POLICY_ACTION_ASK))
          .build();
  private static final Set<String> SETTLED = Set.of("TOOL_CALL_SETTLED", "TOOL_CALL_UNKNOWN");
  private static final Set<String> OPTIONS = Set.of("--address", "--ca", "--session", "--from", "--patience");
  private static final Gson JSON = new GsonBuilder().disableHtmlEscaping().create();
  private static final PrintStream OUT =
      new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

  private Converse() {}

  /** The exit code: 0 when the turn has ended, 1 when the mesh refused something or is away, 2 for misuse. */
  public static void main(String[] arguments) throws IOException {
    Map<String, String> chosen = parsed(arguments);
    String key = System.getenv().getOrDefault("HANDMESH_API_KEY", "");
    boolean something = chosen.containsKey("task") || chosen.containsKey("--session");
    if (key.isEmpty() || !chosen.containsKey("--address") || !something) {
      System.err.println("HANDMESH_API_KEY has to be set, and an address, and a task or a session to be given");
      System.exit(2);
    }
    try (Mesh mesh = connected(chosen, key)) {
      converse(mesh, chosen);
    } catch (MeshError error) {
      show(Map.of("error", Lines.ofError(error)));
      System.exit(1);
    }
  }

  private static Map<String, String> parsed(String[] arguments) {
    Map<String, String> chosen = new HashMap<>();
    for (int at = 0; at < arguments.length; at++) {
      if (arguments[at].equals("--deny")) { // declines what the agent asks for
        chosen.put("--deny", "");
      } else if (OPTIONS.contains(arguments[at]) && at + 1 < arguments.length) {
        chosen.put(arguments[at], arguments[++at]);
      } else if (arguments[at].startsWith("--")) {
        return Map.of(); // no such option
      } else {
        chosen.put("task", arguments[at]);
      }
    }
    return chosen;
  }

  /** {@code --ca} names the authority to trust, {@code --patience} the seconds for which a mesh that is away is tried. */
  private static Mesh connected(Map<String, String> chosen, String key) throws IOException {
    String address = chosen.get("--address");
    Duration patience = Duration.ofMillis((long) (1_000 * Double.parseDouble(chosen.getOrDefault("--patience", "60"))));
    String authority = chosen.get("--ca");
    return authority == null ? Mesh.at(address, key, patience) : Mesh.at(address, key, patience, new File(authority));
  }

  /** Begins, or goes on with {@code --session}, and follows it {@code --from} a position until the turn has ended. */
  private static void converse(Mesh mesh, Map<String, String> chosen) {
    String task = chosen.get("task");
    long said = 0;
    Session session;
    if (chosen.containsKey("--session")) {
      session = mesh.session(chosen.get("--session"));
      said = task == null ? 0 : session.send(task);
    } else {
      session = mesh.create(CONFIG, task);
    }
    show(Map.of("session", session.id));
    try (Watch watch = session.watch(Long.parseLong(chosen.getOrDefault("--from", "1")), true)) {
      while (true) {
        Told told = watch.next();
        if (told instanceof Told.Previewed it) {
          show(Lines.ofPreview(it.preview()));
        } else if (told instanceof Told.Happened it) {
          show(Lines.ofEvent(it.event()));
          reactOrTell(session, it.event(), !chosen.containsKey("--deny"));
          if (it.event().hasTurnEnded() && it.event().getPosition() > said) {
            return;
          }
        }
      }
    }
  }

  private static void reactOrTell(Session session, Event event, boolean allowed) {
    try {
      react(session, event, allowed);
    } catch (MeshError error) {
      if (!SETTLED.contains(error.reason)) {
        throw error;
      }
      show(Map.of("refused", Lines.ofError(error))); // somebody else was first
    }
  }

  /** Does what an event asks of a client. */
  private static void react(Session session, Event event, boolean allowed) {
    if (event.hasCustomToolRequested()) {
      var asked = event.getCustomToolRequested();
      var order = JsonParser.parseString(asked.getInputJson()).getAsJsonObject().get("order_id");
      session.answer(asked.getToolUseId(), "order " + (order == null ? "?" : order.getAsString()) + " is paid");
    } else if (event.hasToolConfirmationRequested()) {
      session.decide(event.getToolConfirmationRequested(), allowed, allowed ? "" : "Not now.");
    }
  }

  private static void show(Map<String, ?> line) {
    OUT.println(JSON.toJson(line));
  }
}
