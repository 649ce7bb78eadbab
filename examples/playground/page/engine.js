// The library, as WebAssembly. wasm_exec.js is of Go's distribution, and defines Go.
import "./wasm_exec.js";

/** Returns {traffics, simulate}, as wasm/main.go describes them. */
export async function load() {
  const go = new globalThis.Go();
  const response = await fetch(new URL("ratelimit.wasm", import.meta.url));
  if (!response.ok) throw new Error(`ratelimit.wasm: ${response.status} ${response.statusText}`);
  const { instance } = await WebAssembly.instantiate(await response.arrayBuffer(), go.importObject);
  go.run(instance); // returns once the library waits for calls, and settles when it ends
  return globalThis.ratelimit;
}
