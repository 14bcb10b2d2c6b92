"""Every operation of a log, described once: client, asyncio, server and HTTP follow from it."""
