/** Worker that computes a layout from forces: links pull, nodes push each other away. It stops when that is done. */
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY, type SimulationNodeDatum } from "d3-force";

export interface ForceRequest {
  readonly number: number;
  /** Index of the parent of each node; -1 for roots. */
  readonly parents: Int32Array;
  /** Positions to start from: the same start gives the same layout. */
  readonly x: Float32Array;
  readonly y: Float32Array;
}

export interface ForceResponse {
  readonly number: number;
  readonly x: Float32Array;
  readonly y: Float32Array;
}

/** Steps until the layout is done: 2,000 nodes need about two seconds. */
const TICKS = 120;
const LINK_LENGTH = 50;
const CHARGE = -120;
const RADIUS = 12;
/** Pull towards the middle, so that orphans stay near. */
const GRAVITY = 0.03;

addEventListener("message", ({ data }: MessageEvent<ForceRequest>) => {
  const nodes: SimulationNodeDatum[] = Array.from(data.x, (x, index) => ({ x, y: data.y[index] ?? 0 }));
  const links = [...data.parents.entries()].flatMap(([source, target]) => (target < 0 ? [] : [{ source, target }]));
  forceSimulation(nodes)
    .alphaDecay(1 - 0.001 ** (1 / TICKS))
    .force("link", forceLink(links).distance(LINK_LENGTH).strength(0.7))
    .force("charge", forceManyBody().strength(CHARGE).theta(1))
    .force("collide", forceCollide(RADIUS))
    .force("x", forceX(0).strength(GRAVITY))
    .force("y", forceY(0).strength(GRAVITY))
    .stop()
    .tick(TICKS);
  const response: ForceResponse = {
    number: data.number,
    x: Float32Array.from(nodes, ({ x }) => x ?? 0),
    y: Float32Array.from(nodes, ({ y }) => y ?? 0),
  };
  postMessage(response);
});
