/**
 * The pod networks of this node as Kubernetes has them: `spec.podCIDRs` of its Node object, followed.
 *
 * Listed, then watched from the version of the list on, with bookmarks; each watch is ended by the API server after some
 * two minutes and opened again where it ended. Whatever goes wrong leads back to the list, with backoff. Level, not
 * edge: what is known stays while the API is away, and is replaced by what it says next. A Node that is not there has no
 * pod networks, and is waited for. An error that nobody has foreseen, of a library that reads what others wrote, is tried
 * again too: it costs the news of this source, never the agent.
 *
 * Before the first answer nothing is known, which is something else than no pod networks: `state` says so, and `Service`
 * goes on with what the run before knew.
 */
import { Backoff, streamBackoff, systemClock, Value, type Clock, type Watched } from "../async.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { ClusternetError, describeInLine, messageOf, UsageError } from "../errors.ts";
import { RecentSecrets, silentLogger, type RedactingLogger } from "../log.ts";
import type { SourceState } from "../own.ts";
import { Prefixes } from "../prefixes.ts";
import { ApiAccess, type AccessOptions } from "./access.ts";
import { ApiError, gone, listNode, StreamLostError, watchNode, type RequestContext } from "./api.ts";
import { decodePodCidrs, type NodeObject, type WatchEvent } from "./node-object.ts";
import { nodeNameProblem } from "./names.ts";

/** Where the Node object is found. */
export interface KubernetesOptions {
  /** Path of a kubeconfig, or "in-cluster": the service account of the pod that this program runs in. */
  readonly kubeconfig: string;
  /** Name of the Node object. */
  readonly node: string;
  /** Announced besides, whatever Kubernetes says, and before. */
  readonly fixed?: Prefixes;
  /** For exec plugins and `in-cluster`. Default: that of this program. */
  readonly environment?: Readonly<Record<string, string | undefined>>;
  /** Where the service account is. Default: where Kubernetes puts it. */
  readonly serviceAccountDirectory?: string;
  readonly log?: RedactingLogger;
  readonly clock?: Clock;
}

/** The source: what `Service` takes as `localKubernetesPodNetwork`, and how it is doing. */
export interface KubernetesPodNetwork {
  /** For `localKubernetesPodNetwork`. */
  readonly prefixes: Watched<Prefixes>;
  /** For `podNetworkState`. */
  readonly state: Watched<SourceState>;
  /** Follows the Node until `signal` aborts. Never throws for what the API or the kubeconfig does. */
  run(signal: AbortSignal): Promise<void>;
}

/** Each watch lasts so long, the same for no two: a thousand agents must not come back in step. */
const watchSeconds = { least: 90, most: 120 } as const;
/** So long after its end was due a stream is taken for lost. */
const overdueMs = 10_000;
/** A watch that ends sooner, with nothing said, is no watch … */
const shortWatchMs = 5_000;
/** … and so many in a row are no accident: something between here and the API server ends them. */
const toleratedCuts = 3;

/**
 * A source for the pod networks of a Node. Reads everything that the kubeconfig names once: throws SettingsError for what
 * cannot be used as it is, UsageError for a name that no Node can have. Talks to nobody before `run`.
 */
export async function kubernetesPodNetwork(options: KubernetesOptions): Promise<KubernetesPodNetwork> {
  const reason = nodeNameProblem(options.node);
  if (reason !== undefined) throw new UsageError(reason);
  const source = new NodeSource(options);
  await source.check();
  return source;
}

class NodeSource implements KubernetesPodNetwork {
  readonly prefixes: Value<Prefixes>;
  readonly state: Value<SourceState>;
  readonly #name: string;
  readonly #fixed: Prefixes;
  readonly #access: ApiAccess;
  readonly #log: RedactingLogger;
  readonly #secrets: RecentSecrets;
  readonly #clock: Clock;
  readonly #backoff: Backoff;
  /** What the Node alone gives. */
  #given: readonly Prefix[] = [];
  /** What is wrong with the Node, and what with the way to it. */
  #ofNode: readonly Problem[] = [];
  #ofApi: readonly Problem[] = [];
  #resourceVersion = "";
  /** Where the last error came from that nobody has foreseen: told once, not at every try. */
  #unforeseen: string | undefined;
  /** Watches in a row that were cut as soon as they were open. */
  #cut = 0;

  constructor(options: KubernetesOptions) {
    const { kubeconfig, environment = process.env, serviceAccountDirectory } = options;
    this.#name = options.node;
    this.#fixed = options.fixed ?? new Prefixes();
    this.#log = options.log ?? silentLogger;
    this.#secrets = new RecentSecrets(this.#log);
    this.#clock = options.clock ?? systemClock;
    const access: AccessOptions = {
      kubeconfig,
      environment,
      clock: this.#clock,
      ...(serviceAccountDirectory === undefined ? {} : { serviceAccountDirectory }),
    };
    this.#access = new ApiAccess(access);
    this.#backoff = new Backoff(streamBackoff, this.#clock);
    this.prefixes = new Value(this.#merged());
    this.state = new Value(this.#stateOf(false));
  }

  async check(): Promise<void> {
    for (const warning of await this.#access.check()) this.#log.warn(warning);
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        await this.#follow(signal);
      } catch (error) {
        if (signal.aborted) return;
        this.#failed(error);
        await this.#clock.sleep(this.#backoff.next(), signal);
      }
    }
  }

  /** Lists, then watches until something goes wrong, which is thrown. */
  async #follow(signal: AbortSignal): Promise<void> {
    const listed = await listNode(await this.#context(signal), signal);
    this.#resourceVersion = listed.resourceVersion;
    this.#take(listed.node);
    while (!signal.aborted) await this.#watch(signal);
  }

  async #watch(signal: AbortSignal): Promise<void> {
    const { least, most } = watchSeconds;
    const timeoutSeconds = Math.round(least + this.#clock.random() * (most - least));
    const startMs = this.#clock.nowMs();
    const hasLasted = (): boolean => this.#clock.nowMs() - startMs >= shortWatchMs;
    const works = (): void => {
      this.#cut = 0;
      // What says a word at each try and ends must not be asked as fast as it can answer.
      if (hasLasted()) this.#backoff.reset();
      this.#wayIs([]);
    };
    const options = {
      resourceVersion: this.#resourceVersion,
      timeoutSeconds,
      silenceMs: timeoutSeconds * 1000 + overdueMs,
      // Now that both requests are answered nothing is wrong with the way to the Node.
      opened: () => (this.#cut < toleratedCuts ? this.#wayIs([]) : undefined),
    };
    let heard = false;
    try {
      for await (const event of watchNode(await this.#context(signal), options, signal)) {
        heard = true;
        works();
        this.#fold(event);
      }
    } catch (error) {
      if (error instanceof StreamLostError && hasLasted()) works();
      throw error;
    }
    if (signal.aborted) return;
    if (hasLasted()) return works();
    if (heard) return await this.#clock.sleep(this.#backoff.next(), signal);
    throw new StreamLostError(
      `Cannot watch Kubernetes Node ${quote(this.#name)}: the stream ends as soon as it is open, expected it to last ${timeoutSeconds} s`,
    );
  }

  #fold(event: WatchEvent): void {
    switch (event.kind) {
      case "changed":
      case "deleted":
        this.#resourceVersion = event.node.resourceVersion;
        this.#take(event.kind === "deleted" ? undefined : event.node);
        break;
      case "bookmark":
        this.#resourceVersion = event.resourceVersion;
        break;
      case "error":
      case "unknown":
        break;
    }
  }

  async #context(signal: AbortSignal): Promise<RequestContext> {
    const connection = await this.#access.connect(signal);
    this.#secrets.use(connection.secrets);
    return { connection, name: this.#name, clock: this.#clock };
  }

  #failed(error: unknown): void {
    if (error instanceof ApiError && error.status === 401) this.#access.refused();
    // A stream that was cut is no failure before the API cannot be reached again; nor is a version that is too old.
    const isCut = error instanceof StreamLostError || (error instanceof ApiError && error.status === gone);
    if (isCut && ++this.#cut < toleratedCuts) {
      this.#log.debug("Watch of the Kubernetes Node ended, listing it anew", { reason: messageOf(error) });
      return;
    }
    const kept = this.state.get().answered
      ? "what it said last is kept"
      : "what was known before the start is kept";
    this.#wayIs([{ kind: "source-failed", message: `${this.#reasonOf(error)}; ${kept}` }]);
  }

  #reasonOf(error: unknown): string {
    if (error instanceof ClusternetError) return describeInLine(error);
    // Not its message, here or in the log: nobody knows what it quotes, and keys and tokens are read here.
    const name = error instanceof Error ? error.name : typeof error;
    const places = error instanceof Error ? (error.stack?.match(/^ +at .*$/gm) ?? []) : [];
    const at = places.map((place) => place.trim()).join("; ");
    if (at !== this.#unforeseen) {
      this.#log.error("Unexpected error while following the Kubernetes Node, please report it", {
        error: name,
        at,
      });
    }
    this.#unforeseen = at;
    return `Cannot follow Kubernetes Node ${quote(this.#name)}: unexpected ${name}, please report it with what the log says of it`;
  }

  #take(node: NodeObject | undefined): void {
    const { prefixes, problems } = node === undefined ? missing(this.#name) : decodePodCidrs(node);
    this.#ofNode = problems;
    this.#given = prefixes;
    const next = this.#merged();
    const { answered } = this.state.get();
    if (!answered || inOrder(next) !== inOrder(this.prefixes.get())) {
      this.#log.info("Kubernetes gives this node pod networks", {
        node: this.#name,
        prefixes: prefixes.map(({ text }) => text).join(", ") || "none",
      });
      this.prefixes.set(next);
    }
    this.#publish(true);
  }

  #wayIs(problems: readonly Problem[]): void {
    this.#ofApi = problems;
    this.#publish(this.state.get().answered);
  }

  #publish(answered: boolean): void {
    const next = this.#stateOf(answered);
    if (!Bun.deepEquals(next, this.state.get())) this.state.set(next);
  }

  #stateOf(answered: boolean): SourceState {
    const problems = [...this.#ofApi, ...this.#ofNode];
    return { answered, problems, source: `Kubernetes Node ${this.#name}`, given: this.#given };
  }

  #merged(): Prefixes {
    const all = new Prefixes();
    all.update(this.#fixed);
    all.update(new Prefixes(this.#given));
    return all;
  }
}

function inOrder(prefixes: Prefixes): string {
  return Array.from(prefixes, ({ text }) => text).join(" ");
}

function missing(name: string): ReturnType<typeof decodePodCidrs> {
  const message = `Cannot take pod networks of Kubernetes Node ${quote(name)}: there is no such Node, waiting for it; --kubernetes-node says which one is this node's`;
  return { prefixes: [], problems: [{ kind: "source-failed", message }] };
}
