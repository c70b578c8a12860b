"""`mintnet studio`: the models in a browser, one file a view (extra ``studio``)."""

import os
from threading import Event
from typing import Annotated, Any

import tyro

from mintnet.cli.command import Command, Whole
from mintnet.cli.output import console, strong


class Studio(Command):
    """Open the models in a browser: sample, inspect, interpolate, restore, explain.

    The page is served on 127.0.0.1 alone and loads nothing from elsewhere. Ctrl-C ends it.
    """

    model: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[MODEL]")] = None
    """A run folder or saved model to begin with; shipped models and those in runs/ are there."""
    port: Whole = None  # The port; a free one from 7860 on if not given.
    browser: bool = True  # Open the browser; --no-browser only prints the address.

    def run(self) -> dict[str, Any]:
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # also read where no argument reaches
        from mintnet.studio.page import serve
        from mintnet.studio.parts import Catalogue

        if self.port is not None and not 0 < self.port < 65536:
            raise ValueError(f"--port is a number from 1 to 65535; got {self.port}")
        page, address = serve(Catalogue(*filter(None, [self.model])), self.port, self.browser)
        console().print(f"The studio is at {strong(address)}; Ctrl-C ends it.")
        try:
            Event().wait()
        except KeyboardInterrupt:
            page.close(verbose=False)
        return {"address": address}
