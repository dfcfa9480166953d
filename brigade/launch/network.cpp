#include "brigade/launch/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/files/descriptor.h"

namespace brigade {
namespace {

enum class InterfaceKind { kNetwork, kLoopback };

// Those with an address; labels ("eth0:1") included.
std::map<std::string, InterfaceKind> network_interfaces() {
  std::map<std::string, InterfaceKind> found;
  struct ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0)
    return found;
  for (const auto* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr)
      continue;
    found[each->ifa_name] = (each->ifa_flags & IFF_LOOPBACK) != 0
                                ? InterfaceKind::kLoopback
                                : InterfaceKind::kNetwork;
  }
  ::freeifaddrs(all);
  return found;
}

PeerAddress named_interface(const std::string& name) {
  if (name.find(',') != std::string::npos) {
    throw ConfigError(fmt::format(
        "[launch] {}='{}' names several network interfaces; name one",
        kInterfaceVariable,
        name));
  }
  const auto here = network_interfaces();
  const auto found = here.find(name);
  if (found == here.end()) {
    std::vector<std::string> names;
    for (const auto& [each, kind] : here)
      names.push_back(each);
    throw ConfigError(fmt::format(
        "[launch] {}='{}', but host {} has no such network interface; it has "
        "{}",
        kInterfaceVariable,
        name,
        host_name(),
        fmt::join(names, ", ")));
  }
  return {
      .interface = name,
      .is_loopback = found->second == InterfaceKind::kLoopback};
}

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int error = ::getnameinfo(
      address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? std::string(text.data()) : std::string("unknown");
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

// The address that packets to `target` leave from. A connected datagram socket
// has one, and nothing is sent.
PeerAddress route_to(const addrinfo& target) {
  PeerAddress result{.resolved = numeric(target.ai_addr, target.ai_addrlen)};
  const Descriptor socket(::socket(target.ai_family, SOCK_DGRAM, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (socket.is_open() &&
      ::connect(socket.get(), target.ai_addr, target.ai_addrlen) == 0 &&
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) ==
          0) {
    result.address = numeric(reinterpret_cast<const sockaddr*>(&own), length);
    result.is_loopback = is_loopback(own);
  }
  return result;
}

PeerAddress address_of_route(const StoreAddress& store) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(
      store.host.c_str(), std::to_string(store.port).c_str(), &hints, &list);
  if (error != 0) {
    throw ConfigError(fmt::format(
        "[launch] host {} cannot resolve MASTER_ADDR='{}': {}; set MASTER_ADDR "
        "to a name or address of rank 0's host that every host knows",
        host_name(),
        store.host,
        ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(
      list, ::freeaddrinfo);
  PeerAddress last;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    last = route_to(*each);
    if (!last.address.empty())
      return last;
  }
  throw ConfigError(fmt::format(
      "[launch] host {} has no route to MASTER_ADDR='{}' ({}): {}; set "
      "MASTER_ADDR to an address of rank 0's host in a network that all hosts "
      "share",
      host_name(),
      store.host,
      last.resolved,
      std::strerror(errno)));
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    return "unknown";
  return name.data();
}

PeerAddress peer_address(const LaunchEnvironment& environment) {
  if (!environment.interface.empty())
    return named_interface(environment.interface);
  const bool is_one_machine =
      environment.local_world_size == environment.world_size;
  if (is_one_machine || environment.store.kind == StoreAddress::Kind::kFile)
    return {.interface = "lo", .is_loopback = true};
  return address_of_route(environment.store);
}

namespace {

// std::nullopt: `host` is no numeric loopback address.
std::optional<sockaddr_storage> loopback_address(const std::string& host) {
  const std::string numeric_host = host == "localhost" ? "127.0.0.1" : host;
  sockaddr_storage address{};
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, numeric_host.c_str(), &v4) == 1) {
    auto* into = reinterpret_cast<sockaddr_in*>(&address);
    into->sin_family = AF_INET;
    into->sin_addr = v4;
  } else if (::inet_pton(AF_INET6, numeric_host.c_str(), &v6) == 1) {
    auto* into = reinterpret_cast<sockaddr_in6*>(&address);
    into->sin6_family = AF_INET6;
    into->sin6_addr = v6;
  } else {
    return std::nullopt;
  }
  return is_loopback(address) ? std::optional(address) : std::nullopt;
}

}  // namespace

bool is_loopback_name(const std::string& host) {
  return loopback_address(host).has_value();
}

int listen_on_loopback(const std::string& host, int port) {
  auto address = loopback_address(host);
  BRIGADE_ASSERT(address, "'{}' is no loopback address", host);
  const bool is_v4 = address->ss_family == AF_INET;
  const auto number = htons(static_cast<uint16_t>(port));
  if (is_v4)
    reinterpret_cast<sockaddr_in*>(&*address)->sin_port = number;
  else
    reinterpret_cast<sockaddr_in6*>(&*address)->sin6_port = number;
  Descriptor socket(
      ::socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  const auto length = static_cast<socklen_t>(
      is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  const bool listens =
      socket.is_open() &&
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) ==
          0 &&
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&*address), length) ==
          0 &&
      ::listen(socket.get(), SOMAXCONN) == 0;
  if (listens)
    return socket.release();
  throw CommError(fmt::format(
      "[launch] host {} cannot listen on port {} of {}: {}; set MASTER_PORT to "
      "a free port",
      host_name(),
      port,
      host,
      std::strerror(errno)));
}

}  // namespace brigade
