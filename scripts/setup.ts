/**
 * Installs the Debian packages that the demo or the tests need and that are not there: `bun scripts/setup.ts SET`.
 *
 * Nothing is touched when nothing is missing. Where it cannot install (no root, no apt-get) it says in one
 * line what is missing.
 */

interface Package {
  readonly name: string;
  /** A program that only this package brings; undefined when another package brings one of the same name. */
  readonly program?: string;
}

/** What a machine of the lab is made of. */
const demoPackages: readonly Package[] = [
  { name: "iproute2", program: "ip" },
  { name: "iputils-ping", program: "ping" },
  { name: "nftables", program: "nft" },
  { name: "procps", program: "sysctl" },
  { name: "wireguard-go", program: "wireguard-go" },
  { name: "wireguard-tools", program: "wg" },
];

/** The tests also boot a kernel, check shell scripts, look at packets and make disks fail. */
const testPackages: readonly Package[] = [
  ...demoPackages,
  // Linked statically, as the guest has no libraries; plain busybox has the same program.
  { name: "busybox-static" },
  { name: "cpio", program: "cpio" },
  { name: "qemu-system-x86", program: "qemu-system-x86_64" },
  { name: "shellcheck", program: "shellcheck" },
  { name: "strace", program: "strace" },
  { name: "tcpdump", program: "tcpdump" },
];

/** The tests against a real kube-apiserver, besides what that is built with. */
const kubePackages: readonly Package[] = [
  ...testPackages,
  { name: "curl", program: "curl" },
  { name: "etcd-server", program: "etcd" },
  { name: "openssl", program: "openssl" },
];

/** What can be set up. */
export const packageSets = { demo: demoPackages, tests: testPackages, kube: kubePackages };

/** Installs what is missing of a set. Throws, naming it, when that is not possible. */
export async function setup(set: keyof typeof packageSets): Promise<void> {
  // A shell that became root by `su` has no sbin in its PATH.
  process.env["PATH"] = `${process.env["PATH"] ?? ""}:/usr/local/sbin:/usr/sbin:/sbin`;
  const wanted = packageSets[set];
  const missing = await missingOf(wanted);
  if (missing.length === 0) return;
  const names = missing.join(" ");
  if (process.getuid?.() !== 0) {
    throw new Error(`Cannot install missing packages: not root; as root: apt-get install ${names}`);
  }
  if (Bun.which("apt-get") === null) {
    throw new Error(`Cannot install missing packages: no apt-get here; install what Debian calls ${names}`);
  }
  console.log(`installing missing Debian packages: ${names}`);
  await apt("update");
  await apt("install", "--yes", "--no-install-recommends", ...missing);
  const still = await missingOf(wanted);
  if (still.length > 0) throw new Error(`Cannot install ${still.join(" ")}: apt-get succeeded without them`);
}

async function missingOf(packages: readonly Package[]): Promise<string[]> {
  const missing: string[] = [];
  for (const { name, program } of packages) {
    if (program !== undefined && Bun.which(program, { PATH: process.env["PATH"] ?? "" }) !== null) continue;
    if (!(await isInstalled(name))) missing.push(name);
  }
  return missing;
}

async function isInstalled(name: string): Promise<boolean> {
  if (Bun.which("dpkg-query") === null) return false;
  const query = await Bun.$`dpkg-query --status ${name}`.nothrow().quiet();
  return query.exitCode === 0 && query.text().includes("\nStatus: install ok installed\n");
}

async function apt(...words: readonly string[]): Promise<void> {
  const run = Bun.spawn(["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", ...words], {
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
    stdin: "ignore",
    stdout: "ignore",
    stderr: "inherit",
  });
  const status = await run.exited;
  if (status !== 0) throw new Error(`"apt-get ${words.join(" ")}" ended with status ${status}`);
}

if (import.meta.main) {
  const set = process.argv[2];
  if (set !== "demo" && set !== "tests" && set !== "kube") {
    console.error("usage: bun scripts/setup.ts demo|tests|kube");
    process.exit(64);
  }
  try {
    await setup(set);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exit(69);
  }
}
