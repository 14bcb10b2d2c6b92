"""Between an event loop and a log whose calls block; used by the server and by `lakebed.aio`."""
