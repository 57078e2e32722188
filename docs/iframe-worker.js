// Browsers start no Worker from a file: address, so that a site opened from the disk would have no search. There, and
// only there, the worker's script runs in a hidden frame. (The theme would fetch such a shim from a CDN.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (address) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.src = new URL(address, location.href);
          script.onload = done;
          script.onerror = failed;
          inside.document.body.append(script);
        });
      inside.postMessage = (data) => setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      inside.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address);
      };
      this.ready = load(url);
      this.ready.catch(() => this.dispatchEvent(new Event("error")));
      this.inside = inside;
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
