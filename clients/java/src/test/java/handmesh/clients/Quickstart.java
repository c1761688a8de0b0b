package handmesh.clients;

import handmesh.clients.stubs.handmesh.session.v1.SessionConfig;

/** The quickstart of docs/clients.md: makes a session, and prints its text as it comes. It is compiled, and not run. */
final class Quickstart {
  private Quickstart() {}

  static void list(String apiKey) {
    try (Mesh mesh = Mesh.at("127.0.0.1:7401", apiKey)) {
      SessionConfig config = SessionConfig.newBuilder().setSystem("Be brief.").build();
      try (Watch watch = mesh.create(config, "List the files.").watch(1, true)) {
        while (true) {
          Told told = watch.next();
          if (told instanceof Told.Previewed it) {
            System.out.print(it.preview().getText());
          } else if (told instanceof Told.Happened it && it.event().hasTurnEnded()) {
            return;
          }
        }
      }
    }
  }
}
