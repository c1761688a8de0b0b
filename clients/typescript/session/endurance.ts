import { type MeshError } from "./errors.js";

const FIRST_PAUSE_MS = 50; // between two tries: doubled from the first to the longest
const LONGEST_PAUSE_MS = 2_000;

/** Waits between tries, until they have failed for all of its patience on end. */
export class Endurance {
  private pause = FIRST_PAUSE_MS;
  private givesUp: number | undefined;

  constructor(private readonly patienceMs: number) {}

  /** Begins anew: something worked. */
  renew(): void {
    this.pause = FIRST_PAUSE_MS;
    this.givesUp = undefined;
  }

  /** Waits for the next try, or throws the problem of the last one when there is to be none. */
  async wait(problem: MeshError): Promise<void> {
    this.givesUp ??= Date.now() + this.patienceMs;
    if (Date.now() + this.pause > this.givesUp) throw problem;
    await new Promise((resolve) => setTimeout(resolve, this.pause));
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE_MS);
  }
}
