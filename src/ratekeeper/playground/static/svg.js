// Creates and changes nodes.

const SPACE = "http://www.w3.org/2000/svg";

/** Make an SVG node. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Make an HTML node; attributes that begin with "on" are listeners. */
export function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Change only the attributes that differ: this runs sixty times a second. */
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    const text = String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Change a text, if it differs. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Announce a message to screen readers, even if it is the same as before. */
export function tell(node, text) {
  node.replaceChildren(text);
}

/** Let a node have exactly `count` children, made by `make(index)`. */
export function pool(parent, count, make) {
  while (parent.childElementCount > count) parent.lastElementChild.remove();
  while (parent.childElementCount < count) parent.append(make(parent.childElementCount));
  return parent.children;
}
