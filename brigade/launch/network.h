// Where the peers of a rank connect to: an interface or an address of this
// host.
#pragma once

#include <string>

#include "brigade/launch/environment.h"

namespace brigade {

constexpr const char* kInterfaceVariable = "GLOO_SOCKET_IFNAME";

// The name of this host, as gethostname() gives it.
std::string host_name();

// What a rank tells its peers to connect to.
struct PeerAddress {
  // A network interface of this host; empty: `address` is used.
  std::string interface;
  // Numeric, IPv4 or IPv6: the one that packets to MASTER_ADDR leave from.
  std::string address;
  // What MASTER_ADDR resolved to on this host; empty where it was not asked.
  std::string resolved;
  // Peers on other hosts cannot reach it.
  bool is_loopback = false;
};

// The interface that GLOO_SOCKET_IFNAME names; else "lo" for ranks of one
// machine; else the address of the route to MASTER_ADDR. Throws ConfigError
// where this machine does not have the named interface, a list is named,
// MASTER_ADDR cannot be resolved or there is no route to it.
PeerAddress peer_address(const LaunchEnvironment& environment);

// Whether `host` means the loopback interface on every machine: "localhost",
// 127.0.0.0/8, ::1. Names that a file maps there are not among them.
bool is_loopback_name(const std::string& host);

// A socket that listens at that loopback address and port; "localhost" is
// 127.0.0.1. The caller closes it. Throws CommError where the port is taken.
int listen_on_loopback(const std::string& host, int port);

}  // namespace brigade
