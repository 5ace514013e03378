/** Drawing of a mesh on a canvas. Each call draws one picture; nothing is animated. */
import { type Camera, type Size, getScaleX } from "./camera";
import { type Layout, ROW } from "./layouts";
import type { Mark, Shape } from "./marks";
import type { MeshNode } from "./mesh";

export interface Scene extends Size {
  readonly layout: Layout;
  readonly camera: Camera;
  /** Pixels of the device per pixel of the page. */
  readonly density: number;
  readonly getColor: (token: string) => string;
  readonly font: string;
  readonly getMark: (node: MeshNode) => Mark;
  readonly getName: (mac: string) => string;
  readonly folded: ReadonlySet<string>;
  /** Nodes that are dimmed, such as those with a better signal than asked for. */
  readonly isDimmed: (node: MeshNode) => boolean;
  /** Selected node with its path to the gateway, and the other nodes that receive it. */
  readonly path: readonly string[];
  readonly alternatives: readonly string[];
  readonly hovered: string | null;
  /** Nodes that have changed. */
  readonly changed: ReadonlySet<string>;
}

const RADIUS = 5;
const SMALLEST_RADIUS = 1.5;
const LINE_HEIGHT = 14;
const MAX_LETTERS = 26;
const DIM = 0.22;
/** Pixels between a node and its name. */
const LABEL_GAP = 7;
/** Scale below which names are sparse: there are too many. */
const SPARSE_SCALE = 0.4;
/** Scale from which lines are curved; below it the difference is not visible. */
const CURVE_SCALE = 0.08;

export function paintMesh(context: CanvasRenderingContext2D, scene: Scene): void {
  context.setTransform(scene.density, 0, 0, scene.density, 0, 0);
  context.clearRect(0, 0, scene.width, scene.height);
  const points = scene.layout.nodes.map((node, index) => ({ node, ...project(scene, index) }));
  paintLinks(context, scene, points);
  const radius = Math.max(SMALLEST_RADIUS, Math.min(RADIUS, RADIUS * Math.sqrt(scene.camera.scale * 1.4)));
  for (const point of points) if (isVisible(scene, point)) paintNode(context, scene, point, radius);
  paintLabels(context, scene, points, radius);
}

/** Return the node at a point of the screen; null if none is near. */
export function findNode({ layout, camera }: Pick<Scene, "layout" | "camera">, x: number, y: number, reach: number): MeshNode | null {
  let [nearest, least]: [MeshNode | null, number] = [null, reach ** 2];
  for (const [index, node] of layout.nodes.entries()) {
    const point = project({ layout, camera }, index);
    const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (distance < least) [nearest, least] = [node, distance];
  }
  return nearest;
}

interface Point {
  readonly node: MeshNode;
  readonly x: number;
  readonly y: number;
}

function project({ layout, camera }: Pick<Scene, "layout" | "camera">, index: number): { x: number; y: number } {
  return { x: (layout.x[index] ?? 0) * getScaleX(camera) + camera.x, y: (layout.y[index] ?? 0) * camera.scale + camera.y };
}

function isVisible({ width, height }: Size, { x, y }: Point): boolean {
  return x > -20 && y > -20 && x < width + 20 && y < height + 20;
}

function paintLinks(context: CanvasRenderingContext2D, scene: Scene, points: readonly Point[]): void {
  const { layout, path } = scene;
  const onPath = new Set(path);
  for (const point of points) {
    const { node } = point;
    const parent = points[node.parent === null ? -1 : (layout.indexes.get(node.parent.mac) ?? -1)];
    if (!parent) continue;
    const isOnPath = onPath.has(node.mac) && onPath.has(parent.node.mac);
    const { signal } = node.data;
    const isWeak = signal === "weak" || signal === "very-weak";
    context.globalAlpha = scene.isDimmed(node) && !isOnPath ? DIM : 1;
    context.strokeStyle = scene.getColor(isOnPath ? "--accent" : signal === "very-weak" ? "--bad" : isWeak ? "--warn" : "--control");
    context.lineWidth = isOnPath ? 2.5 : isWeak ? 1.5 : 1;
    context.setLineDash(signal === "very-weak" ? [2, 3] : isWeak ? [6, 3] : []);
    paintLink(context, scene, parent, point);
  }
  context.globalAlpha = 1;
  paintAlternatives(context, scene, points);
  context.setLineDash([]);
}

function paintLink(context: CanvasRenderingContext2D, { layout, camera }: Scene, from: Point, to: Point): void {
  context.beginPath();
  context.moveTo(from.x, from.y);
  if (layout.name === "tree" && camera.scale > CURVE_SCALE) {
    const middle = (from.x + to.x) / 2;
    context.bezierCurveTo(middle, from.y, middle, to.y, to.x, to.y);
  } else context.lineTo(to.x, to.y);
  context.stroke();
}

/** Draw lines to the other nodes that receive the selected node. */
function paintAlternatives(context: CanvasRenderingContext2D, scene: Scene, points: readonly Point[]): void {
  const selected = points[scene.layout.indexes.get(scene.path[0] ?? "") ?? -1];
  if (!selected) return;
  context.strokeStyle = scene.getColor("--series-4");
  context.lineWidth = 1.5;
  context.setLineDash([2, 5]);
  for (const mac of scene.alternatives) {
    const other = points[scene.layout.indexes.get(mac) ?? -1];
    if (!other) continue;
    context.beginPath();
    context.moveTo(selected.x, selected.y);
    context.lineTo(other.x, other.y);
    context.stroke();
  }
}

function paintNode(context: CanvasRenderingContext2D, scene: Scene, point: Point, radius: number): void {
  const { node } = point;
  const mark = scene.getMark(node);
  const [selected] = scene.path;
  context.globalAlpha = scene.isDimmed(node) && node.mac !== selected ? DIM : 1;
  const size = node.data.depth === 0 || node.mac === selected ? radius * 1.5 : radius;
  if (scene.folded.has(node.mac) && node.children.length > 0) paintCircle(context, point, size + 3, scene.getColor("--text-2"), [2, 2]);
  if (scene.changed.has(node.mac)) paintCircle(context, point, size + 6, scene.getColor("--series-3"), []);
  if (node.data.cutsOff > 0 && node.data.depth !== 0) paintCircle(context, point, size + 3, scene.getColor("--warn"), []);
  if (node.mac === selected || node.mac === scene.hovered) paintCircle(context, point, size + 5, scene.getColor("--accent"), []);
  paintShape(context, mark.shape, point, size, scene.getColor(mark.token), scene.getColor("--surface"));
  context.globalAlpha = 1;
}

function paintCircle(context: CanvasRenderingContext2D, { x, y }: Point, radius: number, color: string, dash: readonly number[]): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.strokeStyle = color;
  context.lineWidth = 1.75;
  context.setLineDash([...dash]);
  context.stroke();
  context.setLineDash([]);
}

/** Corners of shapes, in radii. */
const CORNERS: Partial<Record<Shape, readonly (readonly [number, number])[]>> = {
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  triangle: [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
  diamond: [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
};

function paintShape(
  context: CanvasRenderingContext2D,
  shape: Shape,
  { x, y }: Point,
  radius: number,
  color: string,
  ground: string,
): void {
  context.beginPath();
  if (shape === "cross") {
    for (const turn of [-1, 1]) {
      context.moveTo(x - radius, y - radius * turn);
      context.lineTo(x + radius, y + radius * turn);
    }
    context.strokeStyle = color;
    context.lineWidth = 2.25;
    return context.stroke();
  }
  const corners = CORNERS[shape];
  if (!corners) context.arc(x, y, shape === "ring" ? radius - 0.5 : radius, 0, 2 * Math.PI);
  for (const [cornerX, cornerY] of corners ?? []) context.lineTo(x + cornerX * radius, y + cornerY * radius);
  context.closePath();
  context.fillStyle = shape === "ring" ? ground : color;
  context.fill();
  if (shape !== "ring") return;
  context.strokeStyle = color;
  context.lineWidth = 2;
  context.stroke();
}

/** Write names where there is room: first of the selected path, then of nodes with many below them. */
function paintLabels(context: CanvasRenderingContext2D, scene: Scene, points: readonly Point[], radius: number): void {
  const important = new Set([...scene.path, ...(scene.hovered === null ? [] : [scene.hovered])]);
  const inView = points.filter((point) => isVisible(scene, point));
  const rank = ({ node: { mac, data } }: Point): number =>
    important.has(mac) ? Infinity : scene.changed.has(mac) ? 1e9 : data.descendants;
  const isRoomy = scene.layout.name !== "tree" || scene.camera.scale * ROW >= LINE_HEIGHT - 2;
  const isSparse = scene.camera.scale < SPARSE_SCALE;
  const named = isRoomy ? inView : inView.filter((point) => rank(point) > 0);
  named.sort((a, b) => (rank(b) === rank(a) ? 0 : rank(b) - rank(a)));
  const taken = new LabelRoom(isSparse ? 2.5 * LINE_HEIGHT : LINE_HEIGHT - 2);
  context.font = scene.font;
  context.textBaseline = "middle";
  context.lineJoin = "round";
  for (const { node, x, y: middle } of named) {
    // The name of a node with a branch is above its lines.
    const hasLines = scene.layout.name === "tree" && scene.layout.indexes.has(node.children[0]?.mac ?? "");
    const y = hasLines ? middle - LINE_HEIGHT * 0.7 : middle;
    const isFolded = scene.folded.has(node.mac) && node.children.length > 0;
    const text = shorten(scene.getName(node.mac)) + (isFolded ? ` +${node.data.descendants}` : "");
    const start = x + radius + LABEL_GAP;
    const width = context.measureText(text).width;
    if (!important.has(node.mac) && !taken.reserve(start, y, width)) continue;
    context.globalAlpha = scene.isDimmed(node) && !important.has(node.mac) ? DIM * 2 : 1;
    context.strokeStyle = scene.getColor("--surface");
    context.lineWidth = 4;
    context.strokeText(text, start, y);
    context.fillStyle = scene.getColor(important.has(node.mac) ? "--accent" : "--text-2");
    context.fillText(text, start, y);
  }
  context.globalAlpha = 1;
}

function shorten(text: string): string {
  const letters = [...text];
  return letters.length <= MAX_LETTERS ? text : `${letters.slice(0, MAX_LETTERS - 1).join("")}…`;
}

/** Room that labels have taken, by lines of text. */
class LabelRoom {
  /** Create room without labels. `height` is the least distance of two lines that overlap. */
  constructor(readonly height: number) {}

  #lines = new Map<number, { start: number; end: number; y: number }[]>();

  /** Take the room of a label, unless another one is there. */
  reserve(start: number, y: number, width: number): boolean {
    const line = Math.round(y / this.height);
    const end = start + width + 6;
    for (const near of [line - 1, line, line + 1]) {
      for (const other of this.#lines.get(near) ?? []) {
        if (Math.abs(other.y - y) < this.height && end > other.start && start < other.end) return false;
      }
    }
    const labels = this.#lines.get(line);
    if (labels) labels.push({ start, end, y });
    else this.#lines.set(line, [{ start, end, y }]);
    return true;
  }
}
