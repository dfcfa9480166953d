#include "cli/live_server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "brigade/base/error.h"
#include "brigade/launch/network.h"

namespace brigade::cli {
namespace {

// "localhost:8000" -> "localhost", "[::1]:8000" -> "::1".
std::string host_of(const std::string& header) {
  if (header.starts_with('['))
    return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

void answer(
    const std::function<std::string()>& make,
    const char* type,
    httplib::Response& response) {
  try {
    response.set_content(make(), type);
  } catch (const std::exception& error) {
    response.status = 500;
    response.set_content(error.what(), "text/plain");
  }
}

}  // namespace

void serve_live(const LiveServerOptions& options) {
  httplib::Server server;
  server.set_pre_routing_handler(
      [&](const httplib::Request& request, httplib::Response& response) {
        using Result = httplib::Server::HandlerResponse;
        response.set_header("Cache-Control", "no-store");
        response.set_header("X-Content-Type-Options", "nosniff");
        const std::string host = host_of(request.get_header_value("Host"));
        if (options.answers_any_host || is_loopback_name(host) ||
            host == options.address)
          return Result::Unhandled;
        response.status = 403;
        response.set_content(
            "this page is served to this machine alone", "text/plain");
        return Result::Handled;
      });
  server.Get("/", [&](const httplib::Request&, httplib::Response& response) {
    answer(options.page, "text/html; charset=utf-8", response);
  });
  server.Get(
      "/data.json", [&](const httplib::Request&, httplib::Response& response) {
        answer(options.data, "application/json", response);
      });
  // A port that another program listens on is refused, a run's own report too.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  const int port = options.port == 0 ? server.bind_to_any_port(options.address)
                   : server.bind_to_port(options.address, options.port)
                       ? options.port
                       : -1;
  if (port < 0)
    throw ConfigError(fmt::format(
        "[report] cannot listen on {} port {}: {}; choose another --port",
        options.address,
        options.port,
        std::strerror(errno)));
  const bool is_ipv6 = options.address.find(':') != std::string::npos;
  options.on_listening(fmt::format(
      "http://{0}{1}{2}:{3}/",
      is_ipv6 ? "[" : "",
      options.address,
      is_ipv6 ? "]" : "",
      port));
  server.listen_after_bind();
}

}  // namespace brigade::cli
