/**
 * A door from one network namespace to another: `bun door.ts PORT PATH` listens on 127.0.0.1:PORT and joins each
 * connection with one to the Unix socket PATH, which every namespace of this machine sees.
 *
 * It says "open" when it listens, and ends when its stdin does.
 */
import { connect, createServer } from "node:net";

const [port = "", path = ""] = process.argv.slice(2);
const server = createServer((client) => {
  const inside = connect(path);
  client.pipe(inside);
  inside.pipe(client);
  // Nobody behind the door, or one end gone: the other end learns it by its own connection's end.
  inside.on("error", () => client.destroy());
  inside.on("close", () => client.destroy());
  client.on("error", () => inside.destroy());
  client.on("close", () => inside.destroy());
});
server.listen(Number(port), "127.0.0.1", () => console.log("open"));
