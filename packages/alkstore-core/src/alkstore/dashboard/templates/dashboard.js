"use strict";
(() => {
  const live = document.getElementById("live");
  const link = document.getElementById("link");
  if (!live || !link) {
    return;
  }
  const AGAIN = 3000; // milliseconds until a connection that was refused is tried once more
  const GRACE = 2500; // milliseconds without one that are not worth a word: every half minute it is made anew
  let source = null;
  let silence = 0;
  let again = 0;

  const say = (state, text) => {
    link.dataset.state = state;
    if (link.textContent !== text) {
      link.textContent = text;
    }
  };

  // What is the same stays the very element: its focus, its selection and its place of scrolling with it.
  const match = (old, wanted) => {
    if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName) {
      old.replaceWith(wanted);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== wanted.nodeValue) {
        old.nodeValue = wanted.nodeValue;
      }
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!wanted.hasAttribute(name)) {
        old.removeAttribute(name);
      }
    }
    for (const { name, value } of wanted.attributes) {
      if (old.getAttribute(name) !== value) {
        old.setAttribute(name, value);
      }
    }
    matchChildren(old, wanted);
  };

  const matchChildren = (old, wanted) => {
    const before = [...old.childNodes];
    const after = [...wanted.childNodes];
    after.forEach((child, place) => (place < before.length ? match(before[place], child) : old.append(child)));
    before.slice(after.length).forEach((child) => child.remove());
  };

  const show = (text) => {
    const parsed = new DOMParser().parseFromString(`<div>${text}</div>`, "text/html");
    matchChildren(live, parsed.body.firstElementChild);
  };

  const close = () => {
    clearTimeout(silence);
    clearTimeout(again);
    silence = 0;
    source?.close();
    source = null;
  };

  const open = () => {
    close();
    source = new EventSource(location.href.split("#")[0]);
    source.onmessage = (event) => {
      clearTimeout(silence);
      silence = 0;
      show(event.data);
      say("live", "live");
    };
    source.onerror = () => {
      silence ||= setTimeout(() => say("lost", "not connected"), GRACE);
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(again);
        again = setTimeout(open, AGAIN);
      }
    };
  };

  const look = () => {
    if (document.hidden) {
      close();
      say("paused", "paused");
    } else {
      open();
    }
  };

  document.addEventListener("visibilitychange", look);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => event.persisted && look());
  look();
})();
