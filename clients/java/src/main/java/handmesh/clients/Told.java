package handmesh.clients;

import handmesh.clients.stubs.handmesh.session.v1.Event;
import handmesh.clients.stubs.handmesh.session.v1.Preview;

/** What a watcher is told next: an event, or a piece of one to come. */
public sealed interface Told {
  /** Something that happened. */
  record Happened(Event event) implements Told {}

  /** A piece of an event to come. */
  record Previewed(Preview preview) implements Told {}
}
