/** What is asked of the kernel so that no key leaves by way of this process' memory; the effect is shown with the executable. */
import { expect, test } from "bun:test";
import { closeMemory } from "../../src/host/closed-memory.ts";

const EPERM = 1;
const EINVAL = 22;

interface Answers {
  readonly prctl?: number;
  /** One for each try. */
  readonly setrlimit?: readonly number[];
}

function libcWith({ prctl = 0, setrlimit = [0] }: Answers) {
  const calls: string[] = [];
  const answers = [...setrlimit];
  return {
    calls,
    prctl: (option: number, value: number) => {
      calls.push(`prctl ${option} ${value}`);
      return prctl;
    },
    setrlimit: (resource: number, { soft, hard }: { readonly soft: bigint; readonly hard: bigint }) => {
      calls.push(`setrlimit ${resource} ${soft} ${hard}`);
      return answers.shift() ?? EINVAL;
    },
  };
}

const dumpable = "prctl 4 0";
const one = "setrlimit 4 1 1";
const zero = "setrlimit 4 0 0";

test.each<Answers & { name: string; calls: readonly string[]; told: readonly string[] }>([
  { name: "asks for both, and says nothing", calls: [dumpable, one], told: [] },
  {
    name: "takes zero where one cannot be had",
    setrlimit: [EPERM, 0],
    calls: [dumpable, one, zero],
    told: [],
  },
  {
    name: "says what a kernel or a sandbox does not allow, and asks for the rest all the same",
    prctl: EINVAL,
    setrlimit: [EPERM, EPERM],
    calls: [dumpable, one, zero],
    told: [
      "Cannot close the memory of this process to others of its user: prctl errno 22",
      "Cannot forbid core dumps of the programs that are started: setrlimit errno 1",
    ],
  },
])("closeMemory() $name", ({ calls, told, ...answers }) => {
  const libc = libcWith(answers);
  expect(closeMemory(libc)).toEqual([...told]);
  expect(libc.calls).toEqual([...calls]);
});
