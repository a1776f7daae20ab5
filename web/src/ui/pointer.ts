// What people point with.

/** Whether it is fingers: on a machine without any pointer it is not. */
export const byTouch = () => matchMedia("(pointer: coarse)").matches;
