//go:build linux

package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/problem"
)

// growPause is between two listings of a set that changes.
const growPause = 5 * time.Millisecond

// nftReader reads from nf_tables what the nftables library has no call for: one element of a set, whatever the
// set's size; a whole set, knowing whether it changed meanwhile; and the number of the ruleset's generation, which
// every change by anyone increments.
type nftReader struct{ conn *netlink.Conn }

func newNFTReader() (*nftReader, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink to nf_tables: %w", err)
	}
	return &nftReader{conn}, nil
}

func (r *nftReader) close() error { return r.conn.Close() }

func (r *nftReader) ask(message uint16, flags netlink.HeaderFlags, family nftables.TableFamily,
	attrs []netlink.Attribute,
) ([]netlink.Message, error) {
	body, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	return r.conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | message),
			Flags: netlink.Request | flags,
		},
		Data: append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, body...),
	})
}

// generation is the number of the ruleset in force.
func (r *nftReader) generation() (uint32, error) {
	id, err := r.number("the ruleset's generation", unix.NFT_MSG_GETGEN, unix.NFPROTO_UNSPEC, nil, unix.NFTA_GEN_ID)
	return uint32(id), err
}

// tableHandle is the number of a table. The kernel gives none twice, also when a table is removed and made again.
func (r *nftReader) tableHandle(table *nftables.Table) (uint64, error) {
	const handle = 4 // NFTA_TABLE_HANDLE
	name := []netlink.Attribute{{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(table.Name), 0)}}
	return r.number("the table "+table.Name, unix.NFT_MSG_GETTABLE, table.Family, name, handle)
}

// number asks for one thing, and is the number that an attribute of the answer has.
func (r *nftReader) number(what string, message uint16, family nftables.TableFamily, attrs []netlink.Attribute, attribute uint16) (uint64, error) {
	answers, err := r.ask(message, 0, family, attrs)
	if errors.Is(err, unix.EINVAL) { // the kernel knows no messages of this kind
		return 0, problem.Wrap(err, problem.Unsupported, needsTables, "this kernel has no nftables")
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	for _, m := range answers {
		ad, err := attributes(m)
		if err != nil {
			return 0, err
		}
		for ad.Next() {
			switch {
			case ad.Type() != attribute:
			case len(ad.Bytes()) == 8:
				return ad.Uint64(), ad.Err()
			default:
				return uint64(ad.Uint32()), ad.Err()
			}
		}
	}
	return 0, fmt.Errorf("read %s: the kernel did not say", what)
}

// has reports whether a set holds an element.
func (r *nftReader) has(set *nftables.Set, key []byte) (bool, error) {
	value, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_DATA_VALUE, Data: key}})
	if err != nil {
		return false, err
	}
	elem, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_KEY | unix.NLA_F_NESTED, Data: value},
	})
	if err != nil {
		return false, err
	}
	list, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED, Data: elem},
	})
	if err != nil {
		return false, err
	}
	attrs := append(setAttributes(set), netlink.Attribute{
		Type: unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED, Data: list,
	})
	answers, err := r.ask(unix.NFT_MSG_GETSETELEM, 0, set.Table.Family, attrs)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look into the set %s: %w", set.Name, err)
	}
	return len(answers) > 0, nil
}

// keys lists a set. A set that is not there has none.
func (r *nftReader) keys(set *nftables.Set) ([][]byte, error) {
	for try := 1; ; try++ {
		answers, err := r.ask(unix.NFT_MSG_GETSETELEM, netlink.Dump, set.Table.Family, setAttributes(set))
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		interrupted := errors.Is(err, unix.EINTR)
		if err != nil && !interrupted {
			return nil, fmt.Errorf("list the set %s: %w", set.Name, err)
		}
		var keys [][]byte
		for _, m := range answers {
			interrupted = interrupted || m.Header.Flags&netlink.DumpInterrupted != 0
			if keys, err = appendKeys(keys, m); err != nil {
				return nil, fmt.Errorf("list the set %s: %w", set.Name, err)
			}
		}
		// A hash table that grows while it is listed is listed with some elements twice and others not at all, and the
		// kernel does not say so. It takes a moment.
		if !interrupted && distinct(keys) {
			return keys, nil
		}
		if try == dumpTries {
			return nil, fmt.Errorf("list the set %s: it changed while it was read, %d times", set.Name, try)
		}
		time.Sleep(growPause)
	}
}

// distinct says whether no key is there twice.
func distinct(keys [][]byte) bool {
	seen := make(map[string]bool, len(keys))
	for _, key := range keys {
		seen[string(key)] = true
	}
	return len(seen) == len(keys)
}

func setAttributes(set *nftables.Set) []netlink.Attribute {
	return []netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: append([]byte(set.Table.Name), 0)},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: append([]byte(set.Name), 0)},
	}
}

// attributes skips the four bytes of the netfilter header.
func attributes(m netlink.Message) (*netlink.AttributeDecoder, error) {
	const header = 4
	if len(m.Data) < header {
		return nil, fmt.Errorf("an answer of %d bytes is too short", len(m.Data))
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return nil, err
	}
	ad.ByteOrder = binary.BigEndian
	return ad, nil
}

// appendKeys takes the keys out of list → element → key → value.
func appendKeys(keys [][]byte, m netlink.Message) ([][]byte, error) {
	ad, err := attributes(m)
	if err != nil {
		return nil, err
	}
	nested(ad, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(list *netlink.AttributeDecoder) {
		nested(list, unix.NFTA_LIST_ELEM, func(elem *netlink.AttributeDecoder) {
			nested(elem, unix.NFTA_SET_ELEM_KEY, func(key *netlink.AttributeDecoder) {
				for key.Next() {
					if key.Type() == unix.NFTA_DATA_VALUE {
						keys = append(keys, key.Bytes())
					}
				}
			})
		})
	})
	return keys, ad.Err()
}

func nested(ad *netlink.AttributeDecoder, kind uint16, f func(*netlink.AttributeDecoder)) {
	for ad.Next() {
		if ad.Type() == kind {
			ad.Nested(func(inner *netlink.AttributeDecoder) error {
				f(inner)
				return inner.Err()
			})
		}
	}
}
