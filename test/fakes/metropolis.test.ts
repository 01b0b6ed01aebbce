/** The fake of Metropolis' Curator answers as the real one did, case by case. */
import { expect, test } from "bun:test";
import { metropolisRefusal } from "./metropolis.ts";
import recorded from "../fixtures/update-clusternet.json";

interface Case {
  readonly caller: string;
  readonly name: string;
  readonly code: number;
  readonly class?: string;
  readonly request?: {
    readonly clusternet?: {
      readonly wireguard_pubkey?: string;
      readonly prefixes?: readonly { readonly cidr?: string }[];
    };
  };
}

/** Answers that hang on other nodes, on the store or on who calls. */
const elsewhere =
  /key used by another node|caller|client certificate|node could not be saved|message too large/;

const cases: readonly Case[] = recorded.update_node_cluster_networking;

test.each(cases.filter(({ class: kind = "", request }) => request !== undefined && !elsewhere.test(kind)))(
  "metropolisRefusal() answers as recorded: $name",
  ({ caller, code, request }) => {
    const called = Object.entries(recorded.callers).find(([name]) => name === caller)?.[1];
    if (called === undefined || typeof called === "string") throw new Error(`no node "${caller}"`);
    const { wireguard_pubkey: key = "", prefixes = [] } = request?.clusternet ?? {};
    const refusal = metropolisRefusal({
      key,
      prefixes: prefixes.map(({ cidr = "" }) => cidr),
      externalAddress: "external_address" in called ? called.external_address : undefined,
    });
    expect(refusal?.code ?? 0).toBe(code);
  },
);
