"""The page: a picker of models and one tab a view, served on this machine alone."""

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mintnet.studio import between, explain, inspection, layers, restore, sample
from mintnet.studio.parts import Catalogue

OWN_SOURCES = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
"""A content security policy: the browser loads no font, script or picture from elsewhere."""
VIEWS = {"Sample": sample, "Inspect": inspection, "Between": between}
VIEWS |= {"Restore": restore, "Layers": layers}  # the views of density models


class OwnSourcesOnly:
    """Middleware that sends the content security policy with every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = OWN_SOURCES
            await send(message)

        await self.app(scope, receive, with_policy)


def build(catalogue: Catalogue) -> gr.Blocks:
    """The page with all views."""
    flows = catalogue.names("flow")
    page = gr.Blocks(title="mintnet studio", analytics_enabled=False, delete_cache=(600, 3600))
    with page:
        gr.Markdown("# mintnet studio\nExact likelihoods, verified inverses.")
        model = gr.Dropdown(flows, value=flows[0], label="Density model", filterable=False)
        with gr.Tabs():
            for name, view in VIEWS.items():
                with gr.Tab(name):
                    view.build(catalogue, model)
            with gr.Tab("Explain"):
                explain.build(catalogue)
    return page


def serve(
    catalogue: Catalogue, port: int | None = None, browser: bool = False
) -> tuple[gr.Blocks, str]:
    """Serve the page from a thread of its own; gives it with its address."""
    page = build(catalogue)
    page.queue(default_concurrency_limit=2)
    text, code = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
    _, address, _ = page.launch(
        server_name="127.0.0.1",
        server_port=port,
        inbrowser=browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        ssr_mode=False,
        footer_links=[],
        max_file_size="32mb",
        theme=gr.themes.Default(font=text, font_mono=code),
        app_kwargs={"middleware": [Middleware(OwnSourcesOnly)]},
    )
    return page, address
