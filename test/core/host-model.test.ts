/** What is known of the host without looking, after readings, plans and hints in whatever order. */
import { describe, expect, test } from "bun:test";
import { HostModel } from "../../src/core/host-model.ts";
import type { SeenHost } from "../../src/core/host-state.ts";
import { parsePrefix } from "../../src/core/prefix.ts";
import { publicKeyOf, wantedHost } from "../fakes/wanted.ts";

const networks = ["10.192.0.0/11", "fd00::/16"].map(parsePrefix);
const wanted = wantedHost();
const host = (): SeenHost => ({ routes: [], loopback: [], addresses: new Set() });

describe("HostModel", () => {
  test("knows the host for the networks that were read, in whatever order, and for no other", () => {
    const model = new HostModel();
    const seen = host();
    model.takeReading(seen, networks, model.generation, undefined);
    const asked = [networks, networks.toReversed(), networks.slice(1)];
    expect(asked.map((each) => model.seen(each) === seen)).toEqual([true, true, false]);
    model.cover(networks.slice(1));
    expect(asked.map((each) => model.seen(each) === seen)).toEqual([false, false, true]);
  });

  test.each([
    {
      name: "a reading",
      end: (model: HostModel, begun: number) => model.takeReading(host(), networks, begun, []),
    },
    { name: "a plan", end: (model: HostModel, begun: number) => model.take(host(), networks, begun) },
  ])("knows nothing after $name during which a hint came", ({ end }) => {
    const model = new HostModel();
    const begun = model.generation;
    model.invalidate();
    end(model, begun);
    expect({ seen: model.seen(networks), held: model.hold(wanted, []) }).toEqual({
      seen: undefined,
      held: false,
    });
  });

  test("relies on the mesh that is held after a hint, but for peers that were unsure or show otherwise", () => {
    const model = new HostModel();
    const [unsure, changed] = [publicKeyOf(2), publicKeyOf(3)];
    model.takeReading(host(), networks, model.generation, undefined);
    expect(model.hold(wanted, [unsure])).toBe(true);
    expect({ held: model.held, unlooked: [...model.unlooked] }).toEqual({
      held: { held: wanted },
      unlooked: [unsure],
    });
    model.invalidate();
    model.takeReading(host(), networks, model.generation, [changed]);
    expect({ held: model.held, unlooked: [...model.unlooked] }).toEqual({
      held: { held: wanted, unsure: new Set([unsure, changed]) },
      unlooked: [],
    });
  });

  test.each([
    { name: "all peers are in doubt", doubt: (model: HostModel) => model.doubtPeers(), changed: [] },
    { name: "a reading cannot tell which peers changed", doubt: () => {}, changed: undefined },
  ])("relies on no mesh once $name", ({ doubt, changed }) => {
    const model = new HostModel();
    model.takeReading(host(), networks, model.generation, undefined);
    model.hold(wanted, []);
    doubt(model);
    model.drop();
    model.takeReading(host(), networks, model.generation, changed);
    expect(model.held).toEqual({});
  });
});
