// Elements are made here. Text of a run reaches the page as text nodes alone: nothing here reads HTML.

/** An element: attributes, `on…` listeners, and children: nodes, texts, or lists of them. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of an SVG picture. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : visible(String(value)));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(String(child)))));
}

/** `text` with control characters as the pictures of them, and without marks that turn the direction of other text. */
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, (c) => String.fromCharCode(c === "\u007f" ? 0x2421 : 0x2400 + c.charCodeAt(0)))
    .replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, "\u2426");
}

/** Puts other children into an element. */
export function replace(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A link to a place of the viewer. */
export function link(href, ...children) {
  return h("a", { href }, ...children);
}

/** Says something to people who do not see the page change, and for a moment to all others. */
export function say(text) {
  const status = document.getElementById("status");
  replace(status, text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => replace(status), 4000);
}

export async function copy(text, what) {
  await navigator.clipboard.writeText(text);
  say(`${what} copied`);
}
