/* Browsers start no workers for pages from disk. Run the script of one in a hidden frame instead,
   so that the search works without a server. As between threads, messages are copied, and arrive
   later: otherwise both sides would change the same objects. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.waiting = [];
      const source = new URL(address, document.baseURI).href;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>postMessage = data => parent.dispatchEvent(new parent.CustomEvent(" +
        "'worker-message', {detail: {source: window, data}}));" +
        "importScripts = (...all) => all.forEach(each => { const r = new XMLHttpRequest();" +
        "r.open('GET', each, false); r.send(); (0, eval)(r.responseText) });<" + "/script>" +
        `<base href="${source}"><script src="${source}"><` + "/script>";
      window.addEventListener("worker-message", ({ detail }) => {
        if (detail.source !== frame.contentWindow) return;
        const event = new MessageEvent("message", { data: structuredClone(detail.data) });
        setTimeout(() => { this.dispatchEvent(event); this.onmessage?.(event); });
      });
      frame.addEventListener("load", () => {
        this.frame = frame.contentWindow;
        this.waiting.splice(0).forEach(data => this.postMessage(data));
      });
      document.body ? document.body.append(frame)
        : document.addEventListener("DOMContentLoaded", () => document.body.append(frame));
    }
    postMessage(data) {
      if (!this.frame) { this.waiting.push(data); return; }
      const event = new this.frame.MessageEvent("message", { data: structuredClone(data) });
      // A message arrives later, never within the call that sends it.
      setTimeout(() => this.frame.dispatchEvent(event));
    }
    terminate() {}
  };
}
