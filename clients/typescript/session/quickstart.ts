// The quickstart of docs/clients.md: makes a session, and prints its text as it comes.

import { Mesh } from "./mesh.js";

export async function list(apiKey: string): Promise<void> {
  const mesh = new Mesh("127.0.0.1:7401", { apiKey });
  const session = await mesh.create({ system: "Be brief." }, "List the files.");
  for await (const { event, preview } of session.watch({ previews: true })) {
    if (preview?.delta?.$case === "text") process.stdout.write(preview.delta.value);
    if (event?.kind?.$case === "turnEnded") break;
  }
  mesh.close();
}
