/** The log: form of its lines, what is escaped, redacted and left out; and a stderr that cannot be written. */
import { expect, test } from "bun:test";
import { closeSync, constants, mkdtempSync, openSync, readFileSync, readSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type LogFields, type LogLevel, type LogSettings, RecentSecrets, createLog } from "../src/log.ts";
import { stderrWriter, writeStdout } from "../src/standard-streams.ts";

const clock = { wallTime: () => new Date("2026-12-01T12:00:00.000Z") };

function recorded(settings: LogSettings) {
  const lines: string[] = [];
  return { lines, log: createLog(settings, (line) => lines.push(line), clock) };
}

interface LineCase {
  readonly name: string;
  readonly message: string;
  readonly fields?: LogFields;
  readonly text: string;
  readonly json: string;
}

const lineCases: readonly LineCase[] = [
  {
    name: "a message alone",
    message: "Applied the mesh",
    text: "Applied the mesh",
    json: '"message":"Applied the mesh"}',
  },
  {
    name: "fields in the order given, absent ones left out",
    message: "Added peer",
    fields: { node: "b", port: 7838, full: true, gone: undefined },
    text: "Added peer node=b port=7838 full=true",
    json: '"message":"Added peer","node":"b","port":7838,"full":true}',
  },
  {
    name: "a value that could be read as two fields in quotes",
    message: "m",
    fields: { a: "x y", b: "x=y", c: 'x"y', d: "", e: "x\\y" },
    text: 'm a="x y" b="x=y" c="x\\"y" d="" e="x\\\\y"',
    json: '"message":"m","a":"x y","b":"x=y","c":"x\\"y","d":"","e":"x\\\\y"}',
  },
  {
    name: "line ends, terminal escapes and turned text escaped",
    message: "one\ntwo\u001b[31m",
    fields: { a: "x\r\ty", b: "\u009b\u007f", c: "\u202eabc\u2028" },
    text: 'one\\ntwo\\u001b[31m a="x\\r\\ty" b="\\u009b\\u007f" c="\\u202eabc\\u2028"',
    json: '"message":"one\\ntwo\\u001b[31m","a":"x\\r\\ty","b":"\\u009b\\u007f","c":"\\u202eabc\\u2028"}',
  },
  {
    name: "other languages as they are",
    message: "größer",
    fields: { a: "日本" },
    text: "größer a=日本",
    json: '"message":"größer","a":"日本"}',
  },
  {
    name: "a field named like one of the line's own beside it",
    message: "m",
    fields: { time: "noon", level: "high", message: "other", ratio: Number.NaN },
    text: "m time=noon level=high message=other ratio=NaN",
    json: '"message":"m","time_":"noon","level_":"high","message_":"other","ratio":"NaN"}',
  },
];

test.each(lineCases)("createLog() writes $name", ({ message, fields, text, json }) => {
  const asText = recorded({ format: "text", level: "info" });
  const asJson = recorded({ format: "json", level: "info" });
  asText.log.info(message, fields);
  asJson.log.info(message, fields);
  expect([...asText.lines, ...asJson.lines]).toEqual([
    `2026-12-01T12:00:00.000Z INFO  ${text}\n`,
    `{"time":"2026-12-01T12:00:00.000Z","level":"info",${json}\n`,
  ]);
  expect(() => JSON.parse(asJson.lines.join("")) as unknown).not.toThrow();
});

test.each<{ level: LogLevel; want: string }>([
  { level: "debug", want: "DEBUG INFO  WARN  ERROR" },
  { level: "info", want: "INFO  WARN  ERROR" },
  { level: "warn", want: "WARN  ERROR" },
  { level: "error", want: "ERROR" },
])("createLog() leaves out what is below $level", ({ level, want }) => {
  const { log, lines } = recorded({ format: "text", level });
  log.debug("m");
  log.info("m");
  log.warn("m");
  log.error("m");
  expect(
    lines
      .map((line) => line.slice(25, 30))
      .join(" ")
      .trim(),
  ).toBe(want);
});

test("a secret given to redact() for a time appears again after it", () => {
  const { lines, log } = recorded({ format: "text", level: "info" });
  const until = new AbortController();
  log.redact("SECRET", until.signal);
  log.info("a SECRET");
  until.abort();
  log.info("a SECRET");
  expect(lines.map((line) => line.trim().split(" a ").at(-1))).toEqual(["[redacted]", "SECRET"]);
});

function token(number: number): string {
  return `token-${String(number).padStart(4, "0")};`;
}

test("RecentSecrets hides the newest 128, those in use among them, and no short word", () => {
  const { lines, log } = recorded({ format: "text", level: "info" });
  const secrets = new RecentSecrets(log);
  secrets.use(["short", "in-use-all-the-time"]);
  for (let number = 0; number < 1_000; number++) secrets.use([token(number), "in-use-all-the-time"]);
  log.info(["short", "in-use-all-the-time", ...Array.from({ length: 1_000 }, (_, i) => token(i))].join(" "));
  const line = lines.join();
  expect(line.match(/\[redacted\]/g)).toHaveLength(128);
  expect(line).toContain(`short [redacted] ${token(0)}`);
  expect(line).toContain(token(872));
  expect(line).not.toContain(token(873));
});

test("a secret given to redact() appears in no later line, message, field or print", () => {
  const secret = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
  for (const format of ["text", "json"] as const) {
    const { log, lines } = recorded({ format, level: "debug" });
    log.redact("");
    log.redact(secret);
    log.debug(`read ${secret}`, { key: secret, both: `${secret} ${secret}`, other: "abc" });
    log.print(`Error: ${secret}\n  because`);
    const all = lines.join("");
    expect(all).not.toContain(secret);
    expect(all.match(/\[redacted\]/g)?.length).toBe(5);
    expect(all).toContain("abc");
  }
});

/** A pipe with both ends here: a FIFO; `waits`: its writing end is an ordinary one, on which a write waits for room. */
async function withPipe(
  use: (reading: number, writing: number) => void,
  { waits }: { readonly waits: boolean } = { waits: false },
): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), "clusternet-log-"));
  try {
    const path = join(directory, "pipe");
    await Bun.$`mkfifo ${path}`;
    const reading = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const writing = openSync(path, constants.O_WRONLY | (waits ? 0 : constants.O_NONBLOCK));
    use(reading, writing);
    closeSync(writing);
  } finally {
    rmSync(directory, { recursive: true });
  }
}

test("stderrWriter() outlives a reader that has gone away, and stdout says so", async () => {
  await withPipe((reading, writing) => {
    const write = stderrWriter(writing);
    write("first\n");
    closeSync(reading);
    write("second\n");
    expect(writeStdout("third", writing)).toBe(false);
  });
});

test.each([true, false])(
  "stderrWriter() drops lines while the pipe is full and then says how many (waits: %p)",
  async (waits) => {
    await withPipe(
      (reading, writing) => {
        const write = stderrWriter(writing);
        const line = `${"x".repeat(65_535)}\n`;
        write(line);
        write("lost one\n");
        write("lost two\n");
        const buffer = Buffer.alloc(70_000);
        expect(readSync(reading, buffer)).toBe(65_536);
        write("after\n");
        const read = readSync(reading, buffer);
        closeSync(reading);
        expect(buffer.toString("utf8", 0, read)).toBe("(2 lines could not be written)\nafter\n");
      },
      { waits },
    );
  },
);

test("stderrWriter() holds a program up for a moment, not for each line, when nobody reads", async () => {
  await withPipe(
    (_reading, writing) => {
      const write = stderrWriter(writing);
      const startMs = performance.now();
      for (let line = 0; line < 20_000; line++) write(`line ${line} ${"x".repeat(100)}\n`);
      // A write that waits would never come back; one that is patient each time would take minutes.
      expect(performance.now() - startMs).toBeLessThan(10_000);
    },
    { waits: true },
  );
});

test("stderrWriter() outlives a full disk and a closed descriptor", () => {
  const full = openSync("/dev/full", "w");
  const write = stderrWriter(full);
  write("first\n");
  closeSync(full);
  write("second\n");
  expect(() => writeStdout("x", full)).toThrow("Cannot write on standard output");
});

test("writeStdout() writes all of a text that is longer than a pipe takes", async () => {
  const directory = mkdtempSync(join(tmpdir(), "clusternet-log-"));
  try {
    const path = join(directory, "out");
    const file = openSync(path, "w");
    const text = "0123456789".repeat(50_000);
    expect(writeStdout(text, file)).toBe(true);
    closeSync(file);
    expect(readFileSync(path, "utf8")).toBe(text);
  } finally {
    rmSync(directory, { recursive: true });
  }
});
