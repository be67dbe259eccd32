async fn charge(order_id: u64, card: Card) -> Result<Receipt, ApiError> {
    __private::for_editor!(__private::option::key, __private::option::ttl);
    let (__outside, __inside) = __private::entry();
    return __private::locked(
        __outside,
        (),
        async move {
            if let Some(__value) = __private::returns::<Result<Receipt, ApiError>>() {
                return __value;
            }
            #[allow(clippy::shadow_same)]
            let order_id = order_id;
            #[allow(clippy::shadow_same)]
            let card = card;
            __private::for_editor!(::core::format_args!("order:{order_id}"));
            let __key = __private::key(
                const { &__private::Template::new("order:{order_id}") },
                &[__private::text("order:"), __private::value(&&order_id)],
            );
            let __manager = __private::default_manager();
            let __options = __private::options().ttl(::core::time::Duration::from_millis(10000u64));
            __inside.acquire(__manager, __key, __options).await;
            ({ provider::charge(order_id, card).await })
        },
        <Result<Receipt, ApiError> as __private::FromLockError>::__conversion(),
        |__value, __lock| __private::sent_by(&__value).finish(__value, __lock),
    )
    .await;
}
