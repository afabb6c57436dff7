// The pictures of sessions: each is fetched anew while somebody looks, and put into its place when it is there, so that
// nothing flickers. One that is not to be had leaves its place to the sign behind it.

const every = 3000;

async function renew(picture) {
  const next = new Image();
  next.src = `${picture.getAttribute('src').split('?')[0]}?t=${Date.now()}`;
  try {
    await next.decode();
    picture.src = next.src;
    picture.hidden = false;
  } catch {
    picture.hidden = true;
  }
}

document.addEventListener('error', (event) => {
  if (event.target.matches?.('img[data-live]')) event.target.hidden = true;
}, true);

async function round() {
  if (!document.hidden) {
    const seen = [...document.querySelectorAll('img[data-live]')].filter((picture) => {
      const box = picture.parentElement.getBoundingClientRect();
      return box.bottom > 0 && box.top < innerHeight;
    });
    await Promise.all(seen.map(renew));
  }
  setTimeout(round, every);
}
round();
