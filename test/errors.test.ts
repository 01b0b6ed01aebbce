/**
 * Errors as they are printed, with what is beneath them.
 */
import { expect, test } from "bun:test";
import { ClusternetError, describeError, systemReason } from "../src/errors.ts";

const systemError = (text: string): Error => Object.assign(new Error(text), { code: text.split(":")[0] });
const full = systemError(
  "ENOSPC: no space left on device, open '/data/.clusternet.conf.0123.clusternet-tmp'",
);

test.each([
  {
    name: "a chain of causes, and the hints at the end",
    error: new ClusternetError("Cannot read interface", {
      cause: new ClusternetError("Cannot run ip", { hint: "Install it" }),
      hint: "Create it first",
    }),
    want: "Cannot read interface\n  because: Cannot run ip\n  hint: Create it first\n  hint: Install it",
  },
  {
    name: "what the system said, where nothing above says it",
    error: new ClusternetError("Cannot write on standard output", {
      cause: systemError("ENOSPC: no space left on device, write"),
    }),
    want: "Cannot write on standard output\n  because: ENOSPC: no space left on device, write",
  },
  {
    name: "what the system said once only, without the name of a temporary file",
    error: new ClusternetError('Cannot write "clusternet.conf": ENOSPC: no space left on device', {
      cause: full,
      hint: "Make room",
    }),
    want: 'Cannot write "clusternet.conf": ENOSPC: no space left on device\n  hint: Make room',
  },
  {
    name: "a cause once only, where the message above it ends with its words",
    error: new ClusternetError('Cannot use private key "a": it is empty, expected 44 characters', {
      cause: new ClusternetError("it is empty, expected 44 characters", {
        cause: new Error("something else"),
      }),
    }),
    want: 'Cannot use private key "a": it is empty, expected 44 characters\n  because: something else',
  },
  { name: "an error of the system alone", error: full, want: full.message },
  { name: "what is no error", error: "thrown", want: "thrown" },
])("describeError() prints $name", ({ error, want }) => {
  expect(describeError(error)).toBe(want);
});

test.each([
  { from: "ENOSPC: no space left on device, write", want: "ENOSPC: no space left on device" },
  { from: "ENOENT: no such file or directory, open '/a, b'", want: "ENOENT: no such file or directory" },
  { from: "EEXIST: file already exists, link '/a' -> '/b'", want: "EEXIST: file already exists" },
  { from: "something else", want: "something else" },
])('systemReason() of "$from"', ({ from, want }) => {
  expect(systemReason(new Error(from))).toBe(want);
});
