// Runs pytest in Pyodide: node main.mjs PYODIDE SITE HERE ARGUMENT…; the exit code is pytest's.
import { dirname } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [pyodide, site, here, ...args] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const python = await loadPyodide();
const folders = { "/site": site, "/here": here, "/inside": dirname(fileURLToPath(import.meta.url)) };
for (const [folder, root] of Object.entries(folders)) {
  python.FS.mkdirTree(folder);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, folder);
}
python.globals.set("arguments", python.toPy(args));
process.exitCode = python.runPython(`
import sys
sys.path[:0] = ["/site", "/inside"]
import inside
inside.main(arguments)
`);
