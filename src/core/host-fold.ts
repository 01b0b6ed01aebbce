/**
 * What a host shows after a step, by what the kernel is known to do (C4.9).
 *
 * Lets one change be planned without reading the host again, and lets a plan count on the side effects of its own
 * steps. It is a model: host/host.ts drops it whenever a step fails or the kernel tells of a change.
 */
import {
  announcedEndpoint,
  guardMetric,
  linkGroup,
  routeMetric,
  routeProtocol,
  type PeerChange,
  type SeenHost,
  type SeenInterface,
  type SeenRoute,
  type Step,
  type WantedHost,
} from "./host-state.ts";
import { SeenPeers } from "./seen-peers.ts";

/** Index of a link that was just made: the kernel chose it, and the next reading tells. */
const unknownIndex = 0;

/** The least MTU with which a link can have IPv6 (RFC 8200); below it the kernel takes its IPv6 routes away. */
const leastIpv6Mtu = 1280;

/** What is seen after a step was carried out. Never changes its argument. */
export function foldStep(seen: SeenHost, step: Step, wanted: WantedHost): SeenHost {
  switch (step.kind) {
    case "add-link":
      return { ...seen, interface: freshLink(step.name, step.mtu) };
    case "rename-link": {
      // The link is down while it is renamed, which takes its routes.
      const down = withoutRoutes(seen, (route) => route.device === step.from);
      return withLink(down, { name: step.to, up: false });
    }
    case "delete-link": {
      const { interface: _gone, ...rest } = withoutRoutes(seen, (route) => route.device === step.name);
      return rest;
    }
    case "set-link":
      return foldLink(seen, step);
    case "set-device":
      return withLink(seen, {
        ...(step.key ? { publicKey: wanted.publicKey } : {}),
        ...(step.listenPort === undefined ? {} : { listenPort: step.listenPort }),
      });
    case "sync-conf":
      return withLink(seen, {
        publicKey: wanted.publicKey,
        listenPort: wanted.listenPort,
        peers: SeenPeers.ofMesh(wholeMesh(wanted)),
      });
    case "set-peers":
      // What leads to this host leads to all peers that are wanted.
      return withLink(seen, {
        peers: SeenPeers.of(seen.interface?.peers ?? new Map()).fold(step.changes, wanted.peers.length),
      });
    case "add-loopback":
      return {
        ...seen,
        loopback: [...seen.loopback, step.address.text],
        addresses: new Set([...seen.addresses, step.address.text]),
      };
    case "remove-loopback":
      return foldRemovedLoopback(seen, step.address.text);
    case "set-route": {
      const metric = routeMetric(step.network.family);
      const others = withoutRoutes(
        seen,
        (route) =>
          route.network.text === step.network.text &&
          route.protocol === routeProtocol &&
          route.metric === metric,
      );
      const route: SeenRoute = {
        network: step.network,
        type: "unicast",
        device: step.device,
        protocol: routeProtocol,
        metric,
        ...(step.src === undefined ? {} : { src: step.src.text }),
      };
      return { ...others, routes: [...others.routes, route] };
    }
    case "delete-route":
      return withoutRoutes(
        seen,
        (route) =>
          route.network.text === step.network.text &&
          route.protocol === routeProtocol &&
          route.metric === step.metric &&
          route.device === step.device,
      );
    case "add-guard": {
      const guard: SeenRoute = {
        network: step.network,
        type: "unreachable",
        protocol: routeProtocol,
        metric: guardMetric,
      };
      return { ...seen, routes: [...seen.routes, guard] };
    }
    case "delete-guard":
      return withoutRoutes(
        seen,
        (route) => route.network.text === step.network.text && route.metric === guardMetric,
      );
  }
  return step satisfies never;
}

function freshLink(name: string, mtu: number): SeenInterface {
  return {
    index: unknownIndex,
    name,
    // Which one it became is for the next reading to say; nothing is planned by it.
    implementation: "kernel",
    group: linkGroup,
    mtu,
    up: false,
    listenPort: 0,
    fwmark: 0,
    peers: new Map(),
  };
}

function withLink(seen: SeenHost, change: Partial<SeenInterface>): SeenHost {
  return seen.interface === undefined ? seen : { ...seen, interface: { ...seen.interface, ...change } };
}

function withoutRoutes(seen: SeenHost, gone: (route: SeenRoute) => boolean): SeenHost {
  return { ...seen, routes: seen.routes.filter((route) => !gone(route)) };
}

function foldLink(seen: SeenHost, step: Extract<Step, { kind: "set-link" }>): SeenHost {
  const changed = withLink(seen, {
    ...(step.group === undefined ? {} : { group: step.group }),
    ...(step.mtu === undefined ? {} : { mtu: step.mtu }),
    ...(step.up === undefined ? {} : { up: step.up }),
  });
  if (step.mtu === undefined || step.mtu >= leastIpv6Mtu) return changed;
  return withoutRoutes(changed, (route) => route.network.family === 6 && route.device === step.name);
}

/** IPv4 loses the routes with this source; IPv6 keeps them, without source or with a dead one, by kernel version. */
function foldRemovedLoopback(seen: SeenHost, text: string): SeenHost {
  const routes = seen.routes
    .filter((route) => route.src !== text || route.network.family === 6)
    .map((route) => {
      if (route.src !== text) return route;
      const { src: _dead, ...rest } = route;
      return rest;
    });
  return {
    ...seen,
    routes,
    loopback: seen.loopback.filter((each) => each !== text),
    addresses: new Set([...seen.addresses].filter((each) => each !== text)),
  };
}

/** The mesh as changes to an interface without peers. */
function wholeMesh(wanted: WantedHost): PeerChange[] {
  return wanted.peers.map((peer) => {
    const endpoint = announcedEndpoint(peer, wanted.listenPort);
    return {
      publicKey: peer.publicKey,
      allowedIps: peer.prefixes.map((prefix) => prefix.text),
      ...(endpoint === undefined ? {} : { endpoint }),
      ...(wanted.keepaliveSeconds === undefined ? {} : { keepaliveSeconds: wanted.keepaliveSeconds }),
    };
  });
}
