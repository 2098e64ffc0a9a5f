from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from controlplane.console.urls import urlpatterns as console_urls
from controlplane.gateway import views

handler404 = "controlplane.errors.not_found"
handler500 = "controlplane.errors.server_error"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(url="/console/")),
    path("healthz", views.healthz),
    path("readyz", views.readyz),
    path("poolz", views.poolz),
    path("v1/chat/completions", views.chat_completions),
    path("v1/completions", views.completions),
    path("v1/tokenize", views.tokenized),
    path("v1/detokenize", views.detokenized),
    path("v1/models", views.models),
    path("v1/models/<path:name>", views.model),
    path("v1/openapi.json", views.openapi),
    path("v1/requests/<str:public_id>", views.request_receipt),
    path("v1/requests/<str:public_id>/cancel", views.request_cancel),
    path("v1/", views.nothing_here),
    path("v1/<path:rest>", views.nothing_here),
    path("console/", console_urls),
]
