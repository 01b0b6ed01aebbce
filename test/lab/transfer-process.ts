/**
 * One end of a transfer (transfer.ts): `serve ADDRESS BYTES` prints its port, takes so many bytes and gives as many
 * back; `fetch ADDRESS BYTES PORT` is the other end, and ends with status 0 when all came as it must be.
 */
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";

const [role, address = "", bytesText, port] = process.argv.slice(2);
const bytes = Number(bytesText);

/** Every byte says where it is, so that none can be lost or doubled unseen. */
function content(from: number, length: number): Buffer {
  return Buffer.from(Uint8Array.from({ length }, (_, at) => (from + at) % 251));
}

const chunk = 251 * 261;

async function give(socket: Socket): Promise<void> {
  for (let sent = 0; sent < bytes; sent += chunk) {
    if (!socket.write(content(sent, Math.min(chunk, bytes - sent)))) await once(socket, "drain");
  }
}

async function take(socket: Socket): Promise<void> {
  let taken = 0;
  for await (const data of socket.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    if (!data.equals(content(taken, data.length))) throw new Error(`wrong bytes after ${taken}`);
    taken += data.length;
    if (taken >= bytes) return;
  }
  throw new Error(`the connection ended after ${taken} of ${bytes} bytes`);
}

if (role === "serve") {
  const server = createServer();
  server.listen(0, address, () => {
    const bound = server.address();
    console.log(typeof bound === "object" ? bound?.port : bound);
  });
  const [socket] = (await once(server, "connection")) as [Socket];
  await take(socket);
  await give(socket);
  socket.end();
  server.close();
} else {
  const socket = connect(Number(port), address);
  await once(socket, "connect");
  await give(socket);
  await take(socket);
  process.exit(0);
}
