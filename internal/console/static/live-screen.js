// The picture. The box that it is drawn into has a shape of its own: no page in a jail changes the layout here.

export class Screen {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.width = 0; // of the browser's window, in CSS pixels: the space of pointers
    this.height = 0;
    this.drawn = 0;
    this.over = false; // the picture stays as it is
  }

  // draw shows one frame: four bytes that say how long the JSON is, the JSON, and a JPEG.
  async draw(message) {
    const length = new DataView(await message.slice(0, 4).arrayBuffer()).getUint32(0);
    const { width, height } = JSON.parse(await message.slice(4, 4 + length).text());
    const picture = await createImageBitmap(message.slice(4 + length, message.size, 'image/jpeg'));
    if (this.over) return;
    if (this.canvas.width !== picture.width || this.canvas.height !== picture.height) {
      this.canvas.width = picture.width;
      this.canvas.height = picture.height;
    }
    this.context.drawImage(picture, 0, 0);
    picture.close();
    this.width = width;
    this.height = height;
    this.drawn++;
  }

  // place is where a pointer is in the browser's window. The picture is as large as fits, in the middle of the upper edge.
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = Math.min(box.width / this.canvas.width, box.height / this.canvas.height);
    const shown = { width: this.canvas.width * scale, height: this.canvas.height * scale };
    const within = (at, size, most) => Math.min(Math.max(0, (at / size) * most), Math.max(0, most - 1));
    return {
      x: within(event.clientX - box.left - (box.width - shown.width) / 2, shown.width, this.width),
      y: within(event.clientY - box.top, shown.height, this.height),
    };
  }
}
