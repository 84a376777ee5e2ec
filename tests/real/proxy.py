"""A network that can be cut: a TCP proxy on loopback that falls silent when it is told to, and closes nothing."""

import socket
import threading
from urllib.parse import urlsplit

from tests.real.launch import free_port


class Proxy:
    """Forwards to an address. `passes` is how many bytes of each answer still come through; None means all."""

    def __init__(self, url: str) -> None:
        self.forward_to(url)
        self.passes: int | None = None
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def forward_to(self, url: str) -> None:
        """Another address from now on."""
        self.target_url = url
        target = urlsplit(url)
        self._target = (target.hostname, target.port)

    def close(self) -> None:
        """End it and all connections through it."""
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self.passes), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, passes: int | None) -> None:
        left = passes
        try:
            while data := source.recv(65536):
                sink.sendall(data if left is None else data[:left])
                left = None if left is None else left - len(data[:left])
            if left is None:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
