// Serves a page and its data over HTTP while a run goes on.
#pragma once

#include <functional>
#include <string>

namespace brigade::cli {

struct LiveServerOptions {
  std::string address = "127.0.0.1";
  int port = 0;  // 0: any that is free
  // Whether requests for other host names than this machine's own are answered.
  // Off, another site's page cannot read the run by giving its own name this
  // address (DNS rebinding).
  bool answers_any_host = false;
  std::function<std::string()> page;  // "/": HTML; called for each request
  std::function<std::string()> data;  // "/data.json"
  // Once it listens: the address to open.
  std::function<void(const std::string& url)> on_listening;
};

// Serves until the process ends. Throws ConfigError when it cannot listen
// there. What `page` and `data` throw is answered with status 500.
void serve_live(const LiveServerOptions& options);

}  // namespace brigade::cli
