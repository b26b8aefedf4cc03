"""A scripted routing service, and one way to call both Python clients.

The service answers on a real port from its own thread, so that the blocking client and the asyncio
client meet the same faults.
"""

import asyncio
import collections
import dataclasses
import inspect
import threading

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2

import agent_routing
from agent_routing.v1 import routing_service_pb2
from tests.clients.console_driver import modules  # noqa: F401 - a fixture

SERVICE = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"]


@dataclasses.dataclass
class Received:
    """One attempt as it arrived. remaining_s: of its deadline, None without one."""

    method: str
    request: object
    metadata: dict
    remaining_s: float | None


class ScriptedService(grpc.GenericRpcHandler):
    """Each method follows the script of will(); its last step repeats. By default it echoes ids."""

    def __init__(self):
        self.received = []
        self.arrived = threading.Event()
        self.options = [("grpc.so_reuseport", 0)]
        self._scripts = collections.defaultdict(collections.deque)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted-service")
        self._thread.start()
        self._server = None
        self.port = 0

    def will(self, method, *steps):
        """Replace a method's script. A step: an answer, or a function (request, context)."""
        self._scripts[method] = collections.deque(steps)

    @staticmethod
    def fails(code, words="", *details, trailing=(), status=None):
        """Return a step that refuses, with the details of a google.rpc.Status."""
        whole = status or status_pb2.Status(code=code.value[0], message=words)
        for detail in details:
            whole.details.add().Pack(detail)

        async def step(_request, context):
            extra = (("grpc-status-details-bin", whole.SerializeToString()),)
            await context.abort(code, words, (*(extra if details or status else ()), *trailing))

        return step

    @staticmethod
    def hangs(seconds=30):
        """Return a step that answers too late."""

        async def step(_request, _context):
            await asyncio.sleep(seconds)

        return step

    @staticmethod
    def replays(answer):
        """Return a step that answers as if the request id was handled before."""

        async def step(_request, context):
            context.set_trailing_metadata((("agent-routing-replayed", "true"),))
            return answer

        return step

    @staticmethod
    def default(method):
        """Return the step of a method without a script."""
        answer_class = getattr(
            routing_service_pb2, SERVICE.methods_by_name[method].output_type.name
        )
        return lambda request, _context: echo_ids(request, answer_class())

    def requests(self, method):
        """Return the requests that arrived, in order."""
        return [each.request for each in self.received if each.method == method]

    def start(self):
        """Listen, on the previous port if there was one."""
        self.on_loop(self._start())

    def stop(self):
        """Refuse connections, as after a crash."""
        if self._server is not None:
            self.on_loop(self._server.stop(None))
            self._server = None

    def close(self):
        """Stop, and end the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def on_loop(self, work):
        """Run a coroutine on the service's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self):
        self._server = grpc.aio.server(options=self.options)
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    def service(self, handler_call_details):
        """Serve any method of the contract."""
        service, name = handler_call_details.method.lstrip("/").split("/")
        if service != SERVICE.full_name:
            return None
        method = SERVICE.methods_by_name[name]
        request_class = getattr(routing_service_pb2, method.input_type.name)
        answer_class = getattr(routing_service_pb2, method.output_type.name)

        async def handle(request, context):
            self.received.append(
                Received(
                    name,
                    request,
                    dict(context.invocation_metadata()),
                    context.time_remaining(),
                )
            )
            self.arrived.set()
            script = self._scripts[name]
            step = script[0] if script else self.default(name)
            if len(script) > 1:
                script.popleft()
            if not callable(step):
                return step
            answer = step(request, context)
            return await answer if inspect.isawaitable(answer) else answer

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=request_class.FromString,
            response_serializer=answer_class.SerializeToString,
        )


def echo_ids(request, answer):
    """Copy the ids of a request into its answer."""
    for field in ("session_id", "task_id", "request_id"):
        if field in answer.DESCRIPTOR.fields_by_name and field in request.DESCRIPTOR.fields_by_name:
            setattr(answer, field, getattr(request, field))
    return answer


@pytest.fixture
def service():
    """A service on a free port of 127.0.0.1."""
    service = ScriptedService()
    service.start()
    yield service
    service.close()


class EitherClient:
    """A client of either kind; each method is awaited, and iterators give lists."""

    def __init__(self, kind, target, **settings):
        self.client = kind(target, **settings)

    def __getattr__(self, name):
        method = getattr(self.client, name)

        async def call(*args, **kwargs):
            if not isinstance(self.client, agent_routing.Client):
                answer = method(*args, **kwargs)
                if hasattr(answer, "__aiter__"):
                    return [each async for each in answer]
                return await answer

            def block():
                answer = method(*args, **kwargs)
                return list(answer) if hasattr(answer, "__next__") else answer

            return await asyncio.to_thread(block)

        return call


@pytest.fixture(params=["threads", "asyncio"])
async def connect(request, service):
    """A function that creates a client of either kind, for the service or another target."""
    kind = agent_routing.Client if request.param == "threads" else agent_routing.AsyncClient
    quick = agent_routing.RetryPolicy(backoff_first_s=0.01, backoff_max_s=0.05)
    made = []

    def connect(target=None, **settings):
        settings.setdefault("retry", quick)
        made.append(EitherClient(kind, target or f"127.0.0.1:{service.port}", **settings))
        return made[-1]

    yield connect
    for client in made:
        await client.close()
